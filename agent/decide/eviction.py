"""Chooses revisions of models to evict from the cache, so that another model fits. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

# A model in use: org/name and commit. An empty commit stands for all its revisions and its fetches.
Use = tuple[str, str]


@dataclass(frozen=True, slots=True)
class CachedRevision:
    """One revision of a repository in the cache."""

    repo: str  # org/name
    commit: str  # empty: leftovers of unfinished fetches
    used_s: float  # last use by a process, in seconds since 1970
    files: Mapping[str, int] = field(default_factory=dict)  # bytes on the disk; revisions share equal files
    names: tuple[str, ...] = ()  # branches and tags under which it was requested
    is_foreign: bool = False  # not fetched by Gpuward, so never evicted; its files count

    @property
    def size_bytes(self) -> int:
        return sum(self.files.values())


def is_used(revision: CachedRevision, in_use: Collection[Use]) -> bool:
    """Whether a process uses it or waits for it."""
    return (revision.repo, revision.commit) in in_use or (revision.repo, "") in in_use


def held_bytes(revisions: Iterable[CachedRevision]) -> int:
    """Their size together; shared files count once."""
    return sum({(r.repo, name): size for r in revisions for name, size in r.files.items()}.values())


def unused(
    revisions: Iterable[CachedRevision], in_use: Collection[Use], older_than_s: float = 0.0
) -> list[CachedRevision]:
    """Revisions that may be evicted, the longest unused first.

    `older_than_s`: only those last used before this time, in seconds since 1970; 0: all.
    """
    free = [
        r
        for r in revisions
        if not r.is_foreign and not is_used(r, in_use) and (not older_than_s or r.used_s < older_than_s)
    ]
    return sorted(free, key=lambda revision: revision.used_s)


def choose_evictions(
    revisions: Sequence[CachedRevision],
    in_use: Collection[Use],
    *,
    needed_bytes: int,
    free_bytes: int,
    limit_bytes: int | None,
) -> list[CachedRevision] | None:
    """The revisions to evict, the longest unused first; None if all downloads do not fit even then.

    `needed_bytes` are still to be written. `limit_bytes` None: the disk is the limit.
    """
    lacking = needed_bytes - free_bytes
    if limit_bytes is not None:
        lacking = max(lacking, held_bytes(revisions) + needed_bytes - limit_bytes)
    holders = Counter((revision.repo, name) for revision in revisions for name in revision.files)
    chosen = []
    for revision in unused(revisions, in_use):
        if lacking <= 0:
            break
        chosen.append(revision)
        for name, size in revision.files.items():
            holders[revision.repo, name] -= 1
            if not holders[revision.repo, name]:
                lacking -= size
    return chosen if lacking <= 0 else None
