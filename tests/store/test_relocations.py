"""Relocations as rows: requested together, begun a few at a time, abandoned if outdated."""

import pytest

from controller.store.core.database import Database
from controller.store.core.refusals import InUseError
from controller.store.deployments.relocations import (
    NewRelocation,
    begin_relocations,
    check_none_in_progress,
    request_relocations,
)
from controller.store.placement.plan_reads import read_movable, read_relocations
from controller.store.telemetry.retention import prune
from schemas.api.defrag import RelocationView
from support.database.ledger import GIB, add_deployment, add_host, add_instance, claim, rows


async def some_running(db: Database, count: int) -> list[NewRelocation]:
    """Instances at rest that run, and a move for each."""
    await add_host(db, "w1", gpus=count)
    moves = []
    for number in range(count):
        uid = await add_deployment(db, f"d{number}", resources={"gpus": 1})
        await add_instance(db, uid, f"i{number}", phase="running", epoch=1)
        await claim(db, f"GPU-w1-{number}", f"i{number}", GIB)
        moves.append(NewRelocation(f"i{number}", uid, 1, ("w2",), ("GPU-w2-0",), "big"))
    need = {"memory_mib": GIB, "host_memory_mib": 0, "parts": {}, "heads": None, "vocab": None, "notes": []}
    async with db.transaction() as connection:
        await connection.execute("update deployments set phase = 'running', observed_generation = generation")
        await connection.execute("update revisions set need = $1", need)
    return moves


async def begin(db: Database, at_once: int) -> int:
    async with db.transaction() as connection:
        return await begin_relocations(connection, at_once=at_once)


async def states(db: Database) -> list[str]:
    return [row["state"] for row in await rows(db, "select state from relocations order by id")]


async def test_a_few_at_a_time(migrated: Database) -> None:
    await request_relocations(migrated, await some_running(migrated, 3))
    assert await begin(migrated, 2) == 3
    assert await states(migrated) == ["moving", "moving", "waiting"]
    assert await begin(migrated, 2) == 3
    assert await states(migrated) == ["moving", "moving", "waiting"]
    async with migrated.transaction() as connection:
        await connection.execute("update relocations set state = 'moved' where instance_id = 'i0'")
    assert await begin(migrated, 2) == 2
    assert await states(migrated) == ["moved", "moving", "moving"]


async def test_a_second_plan_is_refused_while_one_is_in_progress(migrated: Database) -> None:
    moves = await some_running(migrated, 2)
    await request_relocations(migrated, moves[:1])
    with pytest.raises(InUseError, match="in progress"):
        await request_relocations(migrated, moves[1:])
    async with migrated.snapshot() as connection:
        with pytest.raises(InUseError, match="gpuward defrag"):
            await check_none_in_progress(connection)


async def test_a_relocation_of_a_changed_instance_is_abandoned(migrated: Database) -> None:
    await request_relocations(migrated, await some_running(migrated, 3))
    async with migrated.transaction() as connection:
        await connection.execute("update instances set epoch = 2 where id = 'i0'")
        await connection.execute(
            "update relocations set created_at = now() - interval '11 min' where instance_id = 'i1'"
        )
    assert await begin(migrated, 2) == 1
    assert await states(migrated) == ["abandoned", "abandoned", "moving"]
    reported = await rows(migrated, "select message from events where reason = 'relocation_abandoned' order by id")
    assert ["no longer runs" in reported[0]["message"], "did not begin in time" in reported[1]["message"]] == [
        True,
        True,
    ]


@pytest.mark.parametrize(
    "change",
    [
        "update instances set phase = 'unhealthy'",
        "update deployments set observed_generation = 0",
        "update deployments set phase = 'progressing'",
        """update deployments set spec = spec || '{"movable": false}'""",
        """update revisions set spec = spec || '{"restart": "never"}'""",
        "update instances set pushed_out_for = 'other'",
        "update deployments set deleted_at = now()",
    ],
)
async def test_which_instances_are_movable(migrated: Database, change: str) -> None:
    (move,) = await some_running(migrated, 1)
    async with migrated.snapshot() as connection:
        (one,) = await read_movable(connection)
    assert (one.instance, one.deployment_uid) == (move.instance, move.deployment_uid)
    assert [c.device for c in one.claims] == ["GPU-w1-0"]
    async with migrated.transaction() as connection:
        await connection.execute(change)
    async with migrated.snapshot() as connection:
        assert await read_movable(connection) == []


async def test_old_relocations_are_deleted(migrated: Database) -> None:
    await request_relocations(migrated, await some_running(migrated, 3))
    async with migrated.transaction() as connection:
        for instance, days in (("i0", 31), ("i1", 29)):
            await connection.execute(
                """update relocations set state = 'moved', ended_at = now() - make_interval(days => $2)
                    where instance_id = $1""",
                instance,
                days,
            )
        await prune(connection, keep_events_days=30, keep_actions_days=30)
    assert [row.instance for row in await _shown(migrated)] == ["i2", "i1"], "and those under way are kept"


async def _shown(migrated: Database) -> list[RelocationView]:
    async with migrated.snapshot() as connection:
        return await read_relocations(connection)
