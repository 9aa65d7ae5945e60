"""Names a model by the folder of its commit where its server takes no revision of it."""

from pathlib import Path

from msgspec.structs import replace

from agent.model_cache.hub_layout import folder_name
from schemas.hub_commits import is_commit
from schemas.wire import StartOrder


def with_snapshots(order: StartOrder, cache_dir: Path) -> StartOrder:
    """The order with `NAME=folder` for each `NAME=org/name` in argv of which a commit is ordered by its folder."""
    places = {
        fetch.repo: str(cache_dir / folder_name(fetch.repo) / "snapshots" / fetch.revision)
        for fetch in order.fetches
        if fetch.by_folder and is_commit(fetch.revision)  # else it could name any folder
    }
    return replace(order, argv=tuple(_placed(part, places) for part in order.argv)) if places else order


def _placed(part: str, places: dict[str, str]) -> str:
    name, equals, place = part.partition("=")
    return f"{name}={places[place]}" if equals and place in places else part
