"""However often an agent causes an event, few rows are written, and none is forgotten."""

import uuid

import asyncpg

from controller.domain.events import WRITTEN_FIRST, NewEvent
from controller.store.core.database import Database, prepare_connection
from controller.store.core.events import acting, write_events, write_late_events
from support.database.ledger import rows

WORKER = f"worker:{uuid.uuid4()}"


def flap(number: int) -> NewEvent:
    return NewEvent("gpu_missing", f"gone {number}", (f"gpu:G{number}", WORKER), {"n": number})


async def write(db: Database, *events: NewEvent) -> None:
    with acting("agent:gpu-1"):
        async with db.transaction() as connection:
            await write_events(connection, events)


async def age(db: Database, minutes: int) -> None:
    async with db.transaction() as connection:
        await connection.execute(
            "update event_budgets set began_at = began_at - $1 * interval '1 minute', "
            "written_at = written_at - $1 * interval '1 minute'",
            minutes,
        )


async def late(db: Database) -> None:
    async with db.transaction() as connection:
        await write_late_events(connection)


async def events(db: Database) -> list[tuple[str, str]]:
    return [(r["reason"], r["message"]) for r in await rows(db, "select reason, message from events order by id")]


async def test_what_is_beyond_the_budget_is_told_by_one_event(migrated: Database) -> None:
    for number in range(50):
        await write(migrated, flap(number), NewEvent("applied", "a user's", ("deployment:d",)))
    written = await events(migrated)
    assert written.count(("applied", "a user's")) == 50, "what users cause has no budget"
    whole = [message for reason, message in written if reason == "gpu_missing"]
    assert whole == [f"gone {n}" for n in range(WRITTEN_FIRST)]
    await late(migrated)
    assert len(await events(migrated)) == 50 + WRITTEN_FIRST, "it is not yet time"
    await age(migrated, 11)
    await late(migrated)
    await late(migrated)
    (last,) = await rows(migrated, "select message, objects, evidence, actor from events order by id desc limit 1")
    assert last["message"].startswith(f"gone 49; {50 - WRITTEN_FIRST - 1} more like it since 20")
    assert (last["objects"], last["actor"]) == (["gpu:G49", WORKER], "agent:gpu-1")
    assert last["evidence"] == {"n": 49, "not_listed": 50 - WRITTEN_FIRST - 1}
    assert len(await events(migrated)) == 50 + WRITTEN_FIRST + 1


async def test_one_transaction_of_many_is_kept_in_order(migrated: Database) -> None:
    other = NewEvent("gpu_missing", "another's", (f"worker:{uuid.uuid4()}",))
    await write(migrated, *(flap(n) for n in range(WRITTEN_FIRST + 5)), other)
    written = [message for _, message in await events(migrated)]
    assert written == [f"gone {n}" for n in range(WRITTEN_FIRST)] + ["another's"]
    await age(migrated, 61)
    await write(migrated, flap(100))
    written = [message for _, message in await events(migrated)][WRITTEN_FIRST + 1 :]
    assert written[0].startswith(f"gone {WRITTEN_FIRST + 4}; 4 more like it"), "those held before come first"
    assert written[1:] == ["gone 100"]


async def test_a_transaction_that_fails_spends_nothing(migrated: Database) -> None:
    connection = await asyncpg.connect(migrated.dsn)
    await prepare_connection(connection)
    transaction = connection.transaction()
    await transaction.start()
    await write_events(connection, [flap(n) for n in range(WRITTEN_FIRST)])
    await transaction.rollback()
    await connection.close()
    await write(migrated, flap(1))
    assert await events(migrated) == [("gpu_missing", "gone 1")]


async def test_budgets_of_no_more_use_are_forgotten(migrated: Database) -> None:
    await write(migrated, flap(1))
    await late(migrated)
    assert len(await rows(migrated, "select 1 from event_budgets")) == 1
    await age(migrated, 61)
    await late(migrated)
    assert await rows(migrated, "select 1 from event_budgets") == []
