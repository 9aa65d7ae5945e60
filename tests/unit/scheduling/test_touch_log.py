"""The log of changed groups: a reader gets each change once, and all groups where the log has become too short."""

import pytest

from controller.scheduling.inventory.groups import LogReader, TouchLog

MANY = 20_000


@pytest.mark.parametrize(
    ("rows", "since", "expected"),
    [([3, 1, 3], 0, [1, 3]), ([3, 1, 3], 1, [1, 3]), ([3, 1, 3], 2, [3]), ([5, 5], 0, [5]), ([3, 1], 2, [])],
)
def test_the_rows_since_a_position_each_once(rows: list[int], since: int, expected: list[int]) -> None:
    log = TouchLog()
    for row in rows:
        log.add(row)
    found = log.since(since)
    assert found is not None
    log.add(9)
    assert found.tolist() == expected


@pytest.mark.parametrize("back", [0, 1, 2, 1000, 4096])
def test_positions_last_while_older_entries_are_dropped(back: int) -> None:
    log = TouchLog()
    for row in range(MANY):
        log.add(row)
    assert log.position == MANY
    found = log.since(MANY - back)
    assert found is not None
    assert found.tolist() == list(range(MANY - back, MANY))
    assert log.since(0) is None


def test_the_oldest_entry_is_kept_and_the_one_before_it_is_not() -> None:
    log = TouchLog()
    oldest = 0
    for row in range(MANY):
        log.add(row)
    while log.since(oldest) is None:
        oldest += 1
    found = log.since(oldest)
    assert found is not None
    assert found.tolist() == list(range(oldest, MANY))
    assert 4096 <= MANY - oldest <= 8192


def changed(reader: LogReader) -> list[int] | None:
    found = reader.changed()
    return None if found is None else found.tolist()


def test_a_reader_that_is_too_late_gets_all_groups() -> None:
    log = TouchLog()
    log.add(1)
    reader = LogReader(log, 4)
    assert changed(reader) is None
    log.add(2)
    assert [changed(reader), changed(reader)] == [[2], None]
    for _ in range(9_000):
        log.add(3)
    assert [changed(reader), changed(reader)] == [[0, 1, 2, 3], None]
    log.add(0)
    assert changed(reader) == [0]
