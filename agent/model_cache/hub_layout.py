"""The hub library's layout of a cached repository: `blobs/<etag>`, `snapshots/<commit>/<file>`, `refs/<name>`. Blocks.

Another account of the host may have written it, so no link is followed.
"""

import stat
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from agent.model_cache.beneath import OpenFolder
from schemas.hub import is_commit
from schemas.wire import StartOrder


def folder_name(repo: str) -> str:
    """The hub library's name of a repository's folder."""
    return "models--" + repo.replace("/", "--")


def blob_sizes(model: OpenFolder) -> dict[str, int]:
    """Bytes of each blob and partial blob."""
    with suppress(OSError), model.folder("blobs") as blobs:
        return {name: status.st_size for name, status in blobs.entries().items()}
    return {}


def snapshots(model: OpenFolder) -> list[tuple[str, float]]:
    """The commits with a snapshot, each with its time, the latest first."""
    commits: list[tuple[str, float]] = []
    with suppress(OSError), model.folder("snapshots") as folder:
        commits = [(name, status.st_mtime) for name, status in folder.entries().items() if stat.S_ISDIR(status.st_mode)]
    return sorted(commits, key=lambda commit: -commit[1])


def blobs_of(model: OpenFolder, commit: str) -> set[str]:
    """The blobs to which the links of a snapshot point."""
    with suppress(OSError), model.folder(f"snapshots/{commit}") as folder:
        return {target.rpartition("/")[2] for target in folder.links()}
    return set()


def remove_name(model: OpenFolder, name: str, commit: str) -> None:
    """Removes a branch or tag if it names this commit."""
    with suppress(OSError, ValueError):
        if model.read_text(f"refs/{name}").strip() == commit:
            model.unlink(f"refs/{name}")


def with_snapshots(order: StartOrder, cache_dir: Path) -> StartOrder:
    """Replaces `NAME=org/name` in argv by `NAME=folder` for models that are ordered by folder."""
    places = {
        fetch.repo: str(cache_dir / folder_name(fetch.repo) / "snapshots" / fetch.revision)
        for fetch in order.fetches
        if fetch.by_folder and is_commit(fetch.revision)  # another revision could lead to any folder
    }
    return replace(order, argv=tuple(_placed(part, places) for part in order.argv)) if places else order


def _placed(part: str, places: dict[str, str]) -> str:
    name, equals, place = part.partition("=")
    return f"{name}={places[place]}" if equals and place in places else part
