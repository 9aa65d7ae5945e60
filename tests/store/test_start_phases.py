"""An instance's row keeps how long each phase of its start took, whatever moves it."""

import pytest

from controller.store.core.database import Database
from support.database.ledger import add_deployment, add_instance, rows


@pytest.fixture
async def db(migrated: Database) -> Database:
    await add_instance(migrated, await add_deployment(migrated, "d"), "d-1")
    return migrated


async def move(db: Database, phase: str, reason: str = "", *, epochs: int = 0) -> list[str]:
    """The phases with a time, after a move that comes 10 s after the one before."""
    async with db.transaction() as connection:
        await connection.execute("update instances set start_phase_since = start_phase_since - interval '10 s'")
        await connection.execute(
            "update instances set phase = $1, reason = $2, epoch = epoch + $3, phase_since = now()",
            phase, reason, epochs,
        )  # fmt: skip
    (one,) = await rows(db, "select start_phases from instances")
    return [f"{name} {seconds:.0f}" for name, seconds in one["start_phases"].items()]


async def test_each_phase_and_each_fetch_counts(db: Database) -> None:
    await move(db, "analyzing")
    await move(db, "pending")
    assert [one.split()[0] for one in await move(db, "pending", "no_capacity")] == ["pending", "analyzing"]
    await move(db, "scheduled", epochs=1)
    await move(db, "starting")
    await move(db, "starting", "pulling")
    await move(db, "starting", "fetching")
    await move(db, "starting")
    told = await move(db, "running")
    assert sorted(told) == ["analyzing 10", "fetching 10", "pending 20", "pulling 10", "scheduled 10", "starting 20"]
    assert await move(db, "unhealthy", "probe_failed") == told


async def test_a_new_start_begins_anew(db: Database) -> None:
    await move(db, "scheduled", epochs=1)
    await move(db, "starting")
    await move(db, "backoff")
    assert await move(db, "starting", epochs=1) == []
    assert await move(db, "unreachable") == ["starting 10"]
    assert await move(db, "starting") == ["starting 10"]  # the agent has returned
    assert await move(db, "pending") == []  # placed again
    assert await move(db, "scheduled", epochs=1) == ["pending 10"]
