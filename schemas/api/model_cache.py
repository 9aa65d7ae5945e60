"""Models in a worker's cache as the agent tells them and the API returns them."""

from datetime import datetime

from schemas.base import View


class CachedModelView(View):
    """A model of the hub on a worker.

    Attributes:
        name: `hf:org/name`.
        size_bytes: of all its files.
        used_at: when a process last started with it.
        in_use: a process uses it, or waits for it: it is not removed.
        revisions: names and commits that were asked for, each with its commit.
    """

    name: str
    size_bytes: int
    used_at: datetime
    in_use: bool
    revisions: dict[str, str] = {}


class CachedModels(View):
    """What a cache holds, or what was removed from it."""

    items: tuple[CachedModelView, ...]
