"""Which revisions of models leave the cache, so that another one fits. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

# A model in use: org/name and commit. With an empty commit all its revisions, and what comes of it, are in use.
Use = tuple[str, str]


@dataclass(frozen=True, slots=True)
class CachedRevision:
    """One revision of a repository in the cache."""

    repo: str  # org/name
    commit: str  # empty: what fetches that have not ended have left
    used_s: float  # when a process last used it, in seconds since 1970
    # bytes of each of its files on the disk; revisions share those that are equal
    files: Mapping[str, int] = field(default_factory=dict)
    names: tuple[str, ...] = ()  # branches and tags under which it was asked for
    is_foreign: bool = False  # Gpuward did not fetch it, so it stays; its files are counted

    @property
    def size_bytes(self) -> int:
        return sum(self.files.values())


def is_used(one: CachedRevision, in_use: Collection[Use]) -> bool:
    """Whether a process uses it or waits for it."""
    return (one.repo, one.commit) in in_use or (one.repo, "") in in_use


def held_bytes(revisions: Iterable[CachedRevision]) -> int:
    """Of these together; files that they share count once."""
    return sum({(one.repo, name): size for one in revisions for name, size in one.files.items()}.values())


def unused(
    revisions: Iterable[CachedRevision], in_use: Collection[Use], older_than_s: float = 0.0
) -> list[CachedRevision]:
    """Those that no process uses and that were last used before `older_than_s`; the longest unused first.

    Args:
        revisions: the cache's.
        in_use: what processes use or wait for.
        older_than_s: seconds since 1970; 0: whenever they were used.
    """
    free = [
        one
        for one in revisions
        if not one.is_foreign and not is_used(one, in_use) and (not older_than_s or one.used_s < older_than_s)
    ]
    return sorted(free, key=lambda one: one.used_s)


def choose_evictions(
    revisions: Sequence[CachedRevision],
    in_use: Collection[Use],
    *,
    needed_bytes: int,
    free_bytes: int,
    limit_bytes: int | None,
) -> list[CachedRevision] | None:
    """The revisions that leave, the longest unused first; none if all fits; None if it does not fit even then.

    Args:
        revisions: the cache's.
        in_use: what processes use or wait for: it stays.
        needed_bytes: still to be written, by all downloads.
        free_bytes: of the disk.
        limit_bytes: of the whole cache; None: the disk is the limit.
    """
    lacking = needed_bytes - free_bytes
    if limit_bytes is not None:
        lacking = max(lacking, held_bytes(revisions) + needed_bytes - limit_bytes)
    holders = Counter((one.repo, name) for one in revisions for name in one.files)
    chosen = []
    for one in unused(revisions, in_use):
        if lacking <= 0:
            break
        chosen.append(one)
        for name, size in one.files.items():
            holders[one.repo, name] -= 1
            if not holders[one.repo, name]:
                lacking -= size
    return chosen if lacking <= 0 else None
