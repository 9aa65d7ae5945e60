"""Which models leave the cache, so that another one fits. Pure."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A repository's files in the cache.

    Attributes:
        repo: org/name.
        size_bytes: of all its files.
        used_s: when a process last started with it, in seconds since 1970.
        revisions: names and commits that were asked for, each with its commit.
    """

    repo: str
    size_bytes: int
    used_s: float
    revisions: tuple[tuple[str, str], ...] = ()


def unused(models: Iterable[CachedModel], in_use: Collection[str], older_than_s: float = 0.0) -> list[CachedModel]:
    """Those that no process uses and that were last used before `older_than_s`; the longest unused first.

    Args:
        models: the cache's.
        in_use: repositories that a process uses or waits for.
        older_than_s: seconds since 1970; 0: whenever they were used.
    """
    free = [one for one in models if one.repo not in in_use and (not older_than_s or one.used_s < older_than_s)]
    return sorted(free, key=lambda one: one.used_s)


def choose_evictions(
    models: Sequence[CachedModel],
    in_use: Collection[str],
    *,
    needed_bytes: int,
    free_bytes: int,
    limit_bytes: int | None,
) -> list[CachedModel] | None:
    """The models that leave, the longest unused first; none if all fits; None if it does not fit even then.

    Args:
        models: the cache's.
        in_use: repositories that a process uses or waits for: they stay.
        needed_bytes: still to be written, by all downloads.
        free_bytes: of the disk.
        limit_bytes: of the whole cache; None: the disk is the limit.
    """
    held = sum(one.size_bytes for one in models)
    lacking = needed_bytes - free_bytes
    if limit_bytes is not None:
        lacking = max(lacking, held + needed_bytes - limit_bytes)
    chosen = []
    for one in unused(models, in_use):
        if lacking <= 0:
            break
        chosen.append(one)
        lacking -= one.size_bytes
    return chosen if lacking <= 0 else None
