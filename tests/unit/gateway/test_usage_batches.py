"""Usage on its way to the store: nothing is lost or counted twice, and memory is bounded."""

import time

import pytest

from controller.live.key_use import Counts
from gateway.usage.usage_record import UsageBatches

PATH = "/v1/chat/completions"


@pytest.fixture
def batches() -> UsageBatches:
    return UsageBatches()


def at_minute(monkeypatch: pytest.MonkeyPatch, minute: int) -> None:
    monkeypatch.setattr(time, "time", lambda: minute * 60.0)


def test_a_refused_request_counts_without_a_model(batches: UsageBatches) -> None:
    batches.add("a", PATH, "", Counts(requests=1))
    batches.add("a", PATH, "", Counts(refused=1))
    batches.add("a", PATH, "", Counts(refused=1))
    _, rows = batches.next() or (0, ())
    assert [(row.model, row.counts.requests, row.counts.refused) for row in rows] == [("", 0, 2)]


def test_a_batch_is_handed_over_until_the_store_has_it(batches: UsageBatches, monkeypatch: pytest.MonkeyPatch) -> None:
    at_minute(monkeypatch, 61)
    assert batches.next() is None
    for key in ("a", "b", "a"):
        batches.add(key, PATH, "m", Counts(requests=1))
    number, rows = batches.next() or (0, ())
    assert (number, [(row.key, row.counts.requests) for row in rows]) == (1, [("a", 2), ("b", 1)])
    batches.add("a", PATH, "m", Counts(requests=1))
    assert batches.next() == (1, rows), "again, until it is taken"
    batches.taken()
    number, rows = batches.next() or (0, ())
    assert (number, [(row.key, row.counts.requests) for row in rows]) == (2, [("a", 1)])
    batches.taken()
    assert batches.next() is None


def test_many_rows_become_hours_and_go_in_batches(batches: UsageBatches, monkeypatch: pytest.MonkeyPatch) -> None:
    at_minute(monkeypatch, 60)
    for number in range(50_000):
        batches.add(f"k{number}", PATH, "m", Counts(requests=1))
    for minute in (119, 118):
        at_minute(monkeypatch, minute)
        batches.add("late", PATH, "m", Counts(requests=1))
    at_minute(monkeypatch, 60)
    batches.add("k7", PATH, "m", Counts(requests=1))
    sizes: list[int] = []
    found: dict[tuple[int, str], int] = {}
    while (batch := batches.next()) is not None:
        sizes.append(len(batch[1]))
        found |= {(row.minute, row.key): row.counts.requests for row in batch[1]}
        batches.taken()
    assert sizes == [5_000] * 10 + [1]
    assert (found[60, "late"], found[60, "k7"], len(found)) == (2, 2, 50_001)
