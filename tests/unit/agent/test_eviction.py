"""Which revisions of models leave the cache: the longest unused first, and none in vain."""

import pytest

from agent.decide.eviction import CachedRevision, choose_evictions, held_bytes, is_used, unused

OLD = CachedRevision("o/a", "1", 10.0, {"weights": 60, "config": 1})
NEXT = CachedRevision("o/a", "2", 20.0, {"weights": 60, "extra": 5})  # shares its weights with the first
LAST = CachedRevision("o/b", "1", 30.0, {"weights": 40})
FOREIGN = CachedRevision("o/c", "1", 5.0, {"weights": 100}, is_foreign=True)
ALL = (LAST, FOREIGN, NEXT, OLD)
EVERYTHING = [OLD, NEXT, LAST]


@pytest.mark.parametrize(
    ("needed", "free", "limit", "in_use", "expected"),
    [
        (50, 50, None, (), []),
        (51, 50, None, (), [OLD]),  # its own file is enough
        (52, 50, None, (), [OLD, NEXT]),  # the weights go with the last revision that holds them
        (116, 50, None, (), [OLD, NEXT]),
        (117, 50, None, (), EVERYTHING),
        (156, 50, None, (), EVERYTHING),
        (157, 50, None, (), None),
        (51, 50, None, (("o/a", "1"),), [NEXT]),
        (56, 50, None, (("o/a", "1"),), [NEXT, LAST]),  # the weights stay
        (51, 50, None, (("o/a", ""),), [LAST]),
        (92, 50, None, (("o/a", ""),), None),
        (10, 1000, 216, (), []),
        (10, 1000, 215, (), [OLD]),
        (10, 0, 10**6, (), [OLD, NEXT]),  # the disk is full before the limit
        (10, 1000, 109, (), None),  # what Gpuward did not fetch counts and stays
        (10, 1000, 110, (), EVERYTHING),
    ],
)
def test_the_longest_unused_leave_first_and_no_more_than_needed(
    needed: int,
    free: int,
    limit: int | None,
    in_use: tuple[tuple[str, str], ...],
    expected: list[CachedRevision] | None,
) -> None:
    chosen = choose_evictions(ALL, in_use, needed_bytes=needed, free_bytes=free, limit_bytes=limit)
    assert chosen == expected


def test_files_that_revisions_share_count_once() -> None:
    assert held_bytes(ALL) == 206
    assert [one.size_bytes for one in (OLD, NEXT, LAST)] == [61, 65, 40]


def test_a_revision_is_in_use_by_its_commit_or_with_all_of_its_repository() -> None:
    assert is_used(OLD, [("o/a", "1")])
    assert is_used(OLD, [("o/a", "")])
    assert not is_used(OLD, [("o/a", "2"), ("o/b", "1"), ("o/b", "")])


@pytest.mark.parametrize(
    ("older_than_s", "expected"), [(0.0, EVERYTHING), (10.0, []), (10.1, [OLD]), (30.0, [OLD, NEXT])]
)
def test_those_used_lately_are_spared(older_than_s: float, expected: list[CachedRevision]) -> None:
    assert unused(ALL, (), older_than_s) == expected
    assert unused(ALL, [("o/a", "1")], older_than_s) == [one for one in expected if one is not OLD]
