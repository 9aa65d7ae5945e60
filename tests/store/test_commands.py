"""The hub's side of commands: due once, resent after a while, and two hubs at once."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from controller.store.core.database import Database
from controller.store.deployments.commands import Answer, DueCommands, Target, take_due, write_answers
from support.database.ledger import Host, add_deployment, add_host, add_instance, claim, rows

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


async def set_up(db: Database, n: int = 3) -> Host:
    host = await add_host(db, "w", gpus=1)
    uid = await add_deployment(db, "d")
    for k in range(n):
        await add_instance(db, uid, f"i{k}", phase="starting", epoch=1)
        await claim(db, host.gpus[0], f"i{k}", 1024)
        await execute(
            db,
            """insert into commands (worker_id, instance_id, epoch, rank, verb, payload)
               select id, $1, 1, 0, 'start', '{}' from workers""",
            f"i{k}",
        )
    return host


async def execute(db: Database, query: str, *args: Any) -> None:
    async with db.transaction() as c:
        await c.execute(query, *args)


async def take(
    db: Database, host: Host, *, session: int = 1, since: datetime = LONG_AGO, limit: int = 10
) -> DueCommands:
    async with db.transaction() as c:
        return await take_due(c, [Target(host.id, session, since)], limit)


async def test_a_command_is_due_once_then_after_a_while_or_on_a_new_connection(migrated: Database) -> None:
    host = await set_up(migrated)
    first = await take(migrated, host, limit=2)
    assert [(c.instance, c.sent_before) for c in first.commands] == [("i0", False), ("i1", False)]
    assert [c.instance for c in (await take(migrated, host)).commands] == ["i2"]
    assert (await take(migrated, host)).commands == ()
    await execute(migrated, "update commands set sent_at = sent_at - interval '5 seconds' where instance_id = 'i1'")
    assert [(c.instance, c.sent_before) for c in (await take(migrated, host)).commands] == [("i1", True)]
    newer = datetime.now(UTC) + timedelta(seconds=1)
    assert len((await take(migrated, host, since=newer)).commands) == 3


async def test_no_command_is_dispatched_to_an_older_session(migrated: Database) -> None:
    host = await set_up(migrated)
    assert (await take(migrated, host, session=0)).commands == ()
    assert await rows(migrated, "select 1 from commands where sent_at is not null") == []


async def test_concurrent_dispatchers_do_not_both_take_a_command(migrated: Database) -> None:
    host = await set_up(migrated, 8)
    taken = await asyncio.gather(*(take(migrated, host) for _ in range(6)))
    assert sorted(c.instance for due in taken for c in due.commands) == [f"i{k}" for k in range(8)]


async def test_only_the_first_answer_of_the_commands_worker_counts(migrated: Database) -> None:
    host = await set_up(migrated)
    other = await add_host(migrated, "other", gpus=0)
    ids = [r["id"] for r in await rows(migrated, "select id from commands order by id")]

    async def answer(worker: Host, outcome: Any) -> set[str]:
        async with migrated.transaction() as c:
            return await write_answers(c, [Answer(ids[0], worker.id, outcome, "", "")])

    assert await answer(other, "refused") == set()
    assert len(await answer(host, "accepted")) == 1
    assert await answer(host, "refused") == set()
    states = [r["state"] for r in await rows(migrated, "select state from commands order by id")]
    assert states == ["accepted", "open", "open"]
