"""Models in a worker's cache as the agent tells them and the API returns them."""

from schemas.api.view import Moment, View


class CachedRevisionView(View, frozen=True, kw_only=True):
    """One revision of a cached model.

    Attributes:
        commit: empty: what unfinished fetches have left.
        names: branches and tags under which it was asked for.
        size_bytes: of all its files, also of those that other revisions share.
        used_at: when a process last used it.
        in_use: a process uses it, or waits for it: it is not removed.
    """

    commit: str
    names: tuple[str, ...] = ()
    size_bytes: int
    used_at: Moment
    in_use: bool


class CachedModelView(View, frozen=True, kw_only=True):
    """A model of the hub on a worker.

    Attributes:
        name: `hf:org/name`.
        size_bytes: of all its files; those that revisions share count once.
        used_at: when a process last used it.
        in_use: a process uses it, or waits for it.
        revisions: names and commits that were asked for, each with its commit.
        snapshots: its revisions, each removed by itself; the last used first.
    """

    name: str
    size_bytes: int
    used_at: Moment
    in_use: bool
    revisions: dict[str, str] = {}
    snapshots: tuple[CachedRevisionView, ...] = ()


class CachedModels(View, frozen=True, kw_only=True):
    """What a cache holds, or what was removed from it."""

    items: tuple[CachedModelView, ...]
