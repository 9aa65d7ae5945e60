"""The audit log's writer: nothing that was taken is lost or told twice, and strangers cannot fill it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from controller.api import audit_trail
from controller.api.audit_trail import AuditTrail, NotRecordedError
from controller.store.access.audit_log import Entry, Outcome


class Table:
    """Stands in for the database: what is committed, and what the next writes do."""

    def __init__(self) -> None:
        self.actions: list[str] = []
        self.left_out: list[int] = []
        self.fails = 0
        self.free = asyncio.Event()
        self.free.set()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["Table"]:
        yield self

    async def execute(self, _query: str, _actors: Any, actions: list[str], *more: Any) -> None:
        await self.free.wait()
        if self.fails:
            self.fails -= 1
            raise ConnectionError("away")
        self.actions += actions
        self.left_out += more[-2]


def entry(action: str, outcome: Outcome = "done", key: str = "k") -> Entry:
    return Entry(actor="", action=action, outcome=outcome, key_id=key)


def trail_of(table: Table) -> AuditTrail:
    return AuditTrail(cast("Any", table))


async def test_what_comes_during_a_write_is_kept_though_the_queue_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_trail, "_MOST_WAITING", 3)
    table = Table()
    trail = trail_of(table)
    for n in range(3):
        trail.note(entry(f"early-{n}"))
    table.free.clear()
    writing = asyncio.create_task(trail.flush())
    await asyncio.sleep(0)
    for n in range(3):
        trail.note(entry(f"late-{n}"))
    table.free.set()
    await writing
    await trail.flush()
    assert table.actions == [f"{when}-{n}" for when in ("early", "late") for n in range(3)]


async def test_a_failed_or_cut_write_waits_again_in_order() -> None:
    table = Table()
    trail = trail_of(table)
    for n in range(3):
        trail.note(entry(str(n)))
    table.fails = 1
    with pytest.raises(ConnectionError):
        await trail.flush()
    table.free.clear()
    writing = asyncio.create_task(trail.flush())
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait([writing])
    trail.note(entry("3"))
    table.free.set()
    await trail.close()
    assert table.actions == ["0", "1", "2", "3"]


@pytest.mark.parametrize("outcome", ["refused", "failed", "cut"])
async def test_strangers_leave_few_entries_whatever_comes_of_their_attempts(outcome: Outcome) -> None:
    table = Table()
    trail = trail_of(table)
    for _ in range(5_000):
        trail.note(entry("attempt", outcome, key=""))
    trail.note(entry("change"))
    await trail.close()
    assert table.actions.count("attempt") <= 20
    assert table.actions[-1] == "change"


async def test_reads_of_logs_are_bounded_and_the_next_entry_counts_the_rest() -> None:
    table = Table()
    trail = trail_of(table)
    for _ in range(100):
        trail.note_read(entry("read", key="a"))
    trail.note_read(entry("read", key="b"))
    trail.note(entry("change", key="a"))  # has no bound of theirs
    await trail.close()
    assert table.actions.count("read") == 61
    assert table.actions[-1] == "change"
    assert sum(table.left_out) == 40


async def test_an_entry_that_is_awaited_is_in_the_table_though_a_write_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_trail, "_RETRY_S", 0.01)
    table = Table()
    table.fails = 1
    trail = trail_of(table)
    writing = asyncio.create_task(trail.run())
    await trail.record(entry("key"))
    assert table.actions == ["key"]
    writing.cancel()


async def test_an_awaited_entry_that_is_not_stored_in_time_is_stored_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_trail, "_RECORD_LIMIT_S", 0.05)
    table = Table()
    table.free.clear()
    trail = trail_of(table)
    writing = asyncio.create_task(trail.run())
    with pytest.raises(NotRecordedError):
        await trail.record(entry("key"))
    table.free.set()
    writing.cancel()
    await asyncio.wait([writing])
    await trail.close()
    assert table.actions == ["key"]
