"""The repair of the ledger: it mends what is certain, in one transaction, and names the rest with a way out."""

import asyncio
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from controller.api.context import Check
from controller.health import Readiness
from controller.leader.housekeeping import Housekeeping
from controller.runtime.clock import SystemClock
from controller.store.core.database import Database
from controller.store.core.events import acting
from controller.store.core.ledger_audit import INVARIANTS, read_audit_result
from controller.store.core.repair import REMEDIES, REPAIRS, repair
from store.test_audit import ACTION, INTENT, RELOCATION, WEBHOOK, broken, db, execute, unguarded
from support.database.ledger import rows

__all__ = ["db"]
_START = """
    insert into commands (worker_id, instance_id, epoch, rank, verb, payload, state)
    select id, '{}', 1, 0, 'start', '{{}}', '{}' from workers where name = 'w'"""
_EXITED = "update processes set state = 'exited' where instance_id = '{}'"
_GONE = "alter table commands drop constraint commands_instance_id_fkey"

MENDED = {
    "counters_match_claims": ["update devices set claimed_mib = 0, claims = 0 where uuid = 'GPU-w-0'"],
    "no_claims_without_phase": ["update instances set phase = 'failed' where id = 'a'", _EXITED.format("a")],
    "old_epochs_are_fenced": [
        "update instances set phase = 'backoff', epoch = 2 where id = 'a'", _EXITED.format("a"),
        """insert into claims (device, instance_id, epoch, memory_mib)
           select device, 'a', 2, 1 from claims where instance_id = 'a'""",
    ],
    "no_start_without_claims": [_START.format("c", "open")],
    "no_orphans": [_GONE, _START.format("gone", "accepted")],
    "intents_have_one_number": [INTENT.format("'user', 1, 1")],
    "relocations_end_once": [RELOCATION.format("'a', 'moved', now(), null, null")],
    "relocations_move_what_exists": [RELOCATION.format("'x', 'moving', now() - interval '1 hour', null, null")],
    "only_limits_stay_open": [ACTION.format("'notify', false")],
    "actions_end_with_their_deployment": [ACTION.format("'stop', false")],
    "webhooks_end_once": [ACTION.format("'notify', false"), WEBHOOK.format("true, now()")],
    "webhooks_have_an_action": [WEBHOOK.format("false, now()")],
    "webhooks_are_due": [ACTION.format("'notify', false"), WEBHOOK.format("false, now() + interval '3 days'")],
}  # fmt: skip


def test_every_repair_is_shown_and_every_invariant_has_a_way_out() -> None:
    assert set(MENDED) == {block.name for block in REPAIRS}
    assert set(REMEDIES) == {invariant.name for invariant in INVARIANTS}
    assert set(MENDED) <= set(REMEDIES)


@pytest.mark.parametrize("invariant", sorted(MENDED))
async def test_what_is_certain_is_mended(db: Database, invariant: str) -> None:
    for query in MENDED[invariant]:
        if query.startswith("alter table") or "receiver" in query:
            await unguarded(db, query)
        else:
            await execute(db, query)
    assert invariant in await broken(db)
    tried = await repair(db, dry_run=True)
    assert (tried.dry_run, tried.ok) == (True, True), tried.left
    assert invariant in await broken(db), "a dry run changes nothing"
    with acting("key:admin"):
        done = await repair(db, dry_run=False)
    assert (done.ok, done.left) == (True, [])
    assert invariant in {one.invariant for one in done.mended}
    assert all(one.before != one.after for one in done.mended)
    assert await broken(db) == set()
    (event,) = await rows(db, "select actor, evidence from events where reason = 'ledger_repaired'")
    assert event["actor"] == "key:admin"
    assert event["evidence"]["changes"] == done.changes
    assert (await repair(db, dry_run=False)).changes == 0
    async with db.connection() as connection:
        assert (await read_audit_result(connection)).broken == {}


@pytest.mark.parametrize(
    ("invariant", "queries"),
    [
        ("no_claims_without_phase", ["update instances set phase = 'failed' where id = 'a'"]),  # its process runs
        ("old_epochs_are_fenced", ["update instances set epoch = 2 where id = 'a'"]),
        ("old_epochs_are_fenced", ["update instances set epoch = 0, phase = 'unreachable' where id = 'a'"]),
        ("intents_have_one_number", [INTENT.format("'autoscaler', 1, 2")]),
        ("relocations_stay_in_their_deployment", [RELOCATION.format("'a', 'moving', now(), null, 'a'")]),
        ("one_lease", ["delete from lease"]),
        ("placed_holds_claims", ["delete from claims where instance_id = 'b'"]),
    ],
)
async def test_what_would_be_a_guess_is_left_with_a_way_out(db: Database, invariant: str, queries: list[str]) -> None:
    for query in queries:
        await execute(db, query)
    before = await rows(db, "select * from claims order by device, instance_id")
    result = await repair(db, dry_run=False)
    assert not result.ok
    left = {one.invariant: one.way_out for one in result.left}
    assert left[invariant] == REMEDIES[invariant]
    assert await rows(db, "select * from claims order by device, instance_id") == before
    async with db.connection() as connection:
        assert invariant in (await read_audit_result(connection)).broken


async def test_counters_that_the_database_refuses_are_left(db: Database) -> None:
    await unguarded(db, "insert into claims (device, instance_id, epoch, memory_mib) values ('GPU-w-0', 'b', 1, 40000)")
    result = await repair(db, dry_run=False)
    assert {"memory_not_overclaimed", "counters_match_claims"} <= {one.invariant for one in result.left}


async def test_a_whole_ledger_is_left_alone(db: Database) -> None:
    result = await repair(db, dry_run=False)
    assert (result.ok, result.changes, result.found) == (True, 0, [])
    assert await rows(db, "select 1 from events where reason = 'ledger_repaired'") == []


async def test_a_repair_waits_for_a_writer_and_gives_up_in_time(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    await execute(db, "update devices set claimed_mib = 0, claims = 0 where uuid = 'GPU-w-0'")
    async with db.transaction() as writer:
        await writer.execute("select 1 from devices for no key update")
        waiting = asyncio.create_task(repair(db, dry_run=False))
        await asyncio.sleep(0.2)
        assert not waiting.done()
    assert (await waiting).ok
    monkeypatch.setattr("controller.store.core.repair._HOLD_LIMIT", "set local lock_timeout = '50ms'")
    async with db.transaction() as writer:
        await writer.execute("select 1 from devices for no key update")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await repair(db, dry_run=False)


async def test_a_broken_ledger_turns_readiness_until_it_is_repaired(db: Database) -> None:
    (lease,) = await rows(db, "update lease set term = term + 1, holder = 'test' returning term")
    feed: Any = SimpleNamespace(last_probe_age_s=0.1)

    async def leader() -> str:
        return "this one"

    async def ledger() -> Check:
        return (await Readiness(db, feed, leader, lambda: True)())["ledger"]

    housekeeping = Housekeeping(
        db, lease["term"], SystemClock(), audit_every_s=60.0, keep_events_days=30, keep_actions_days=30
    )
    assert (await ledger()).message == "not audited yet"
    await housekeeping.round()
    assert (await ledger()).ok
    await execute(db, "update devices set claimed_mib = 0, claims = 0 where uuid = 'GPU-w-0'")
    await housekeeping.round()
    found = await ledger()
    assert not found.ok
    assert "counters_match_claims (1)" in found.message
    await repair(db, dry_run=False)
    assert (await ledger()).ok
