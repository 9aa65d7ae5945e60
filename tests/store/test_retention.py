"""Retention deletes old rows and keeps their sums."""

import pytest

from controller.store.access.usage import roll_up_usage
from controller.store.core.database import Database
from controller.store.telemetry.retention import prune
from controller.store.views.metrics import read_figures
from support.database.ledger import add_deployment, rows

POLICY = "0d9e4b6e-6a3f-4f0e-9a53-3f3a4a3a0001"
DAY_S = 86_400


async def act(
    db: Database, uid: str, *, name: str = "p", of: str | None = POLICY, days_ago: float, lasted_s: float | None,
    action: str = "stop", dry_run: bool = False,
) -> None:  # fmt: skip
    """One action of two GPUs; `lasted_s` None: it has not ended."""
    async with db.transaction() as connection:
        await connection.execute(
            """insert into policy_actions (at, policy, policy_uid, policy_generation, action, dry_run, deployment_uid,
                                           deployment, instances, gpus, evidence, ended_at)
               select at, $1, $2, 1, $3, $4, $5, 'd', '{}', 2, '{}', at + make_interval(secs => $7)
                 from (select now() - make_interval(secs => $6) as at) t""",
            name,
            of,
            action,
            dry_run,
            uid,
            days_ago * DAY_S,
            lasted_s,
        )


async def totals(db: Database) -> list[tuple[str, int, int, float]]:
    found = await rows(db, "select policy, actions, would_have_acted, gpu_s from policy_totals order by policy")
    return [(row["policy"], row["actions"], row["would_have_acted"], row["gpu_s"]) for row in found]


async def freed(db: Database) -> dict[str, float]:
    async with db.snapshot() as connection:
        return dict((await read_figures(connection)).freed_gpu_s)


async def pruned(db: Database) -> None:
    async with db.transaction() as connection:
        await prune(connection, keep_events_days=30, keep_actions_days=30)


async def test_actions_that_ended_long_ago_leave_their_sums(migrated: Database) -> None:
    uid = await add_deployment(migrated, "d")
    await act(migrated, uid, days_ago=40, lasted_s=100)
    await act(migrated, uid, days_ago=50, lasted_s=10, action="scale_down")
    await act(migrated, uid, days_ago=40, lasted_s=0, action="notify")
    await act(migrated, uid, days_ago=40, lasted_s=0, dry_run=True)
    await act(migrated, uid, name="", of=None, days_ago=40, lasted_s=7)
    await act(migrated, uid, days_ago=1, lasted_s=1000)
    await act(migrated, uid, name="open", days_ago=40, lasted_s=None)
    before = await freed(migrated)
    await pruned(migrated)
    assert await totals(migrated) == [("", 1, 0, 14), ("p", 3, 1, 220)]
    assert len(await rows(migrated, "select 1 from policy_actions")) == 2, "the young one, and the one that goes on"
    after = await freed(migrated)
    assert after == pytest.approx(before, abs=30)
    assert after["p"] == pytest.approx(2220)


async def test_sums_of_deleted_actions_grow(migrated: Database) -> None:
    uid = await add_deployment(migrated, "d")
    for _ in range(2):
        await act(migrated, uid, days_ago=40, lasted_s=100)
        await act(migrated, uid, name="", of=None, days_ago=40, lasted_s=7)
        await pruned(migrated)
    assert await totals(migrated) == [("", 2, 0, 28), ("p", 2, 0, 400)]


async def test_rows_of_gateways_that_are_long_gone_go(migrated: Database) -> None:
    """Those of a gateway that is silent for a while stay: what it has is unknown."""
    uid = await add_deployment(migrated, "m")
    async with migrated.transaction() as connection:
        for name, hours in (("lives", 0.0), ("silent", 0.5), ("gone", 2.0)):
            await connection.execute(
                """with made as (insert into gateways (id, name, seen_at)
                                 values (gen_random_uuid(), $1, now() - make_interval(secs => $2)) returning id)
                   insert into gateway_demand (gateway_id, deployment_uid, mean, in_flight, waiting, arrived)
                   select id, $3, 1, 1, 0, 1 from made""",
                name,
                hours * 3600,
                uid,
            )
            await connection.execute(
                """insert into wakes (deployment_uid, source, expires_at)
                   values ($1, 'gateway:' || $2::text, now() - make_interval(secs => $3 - 60))""",
                uid,
                name,
                hours * 3600,
            )
            await connection.execute(
                "insert into usage_flushes values (gen_random_uuid(), 1, now() - make_interval(days => $1))",
                int(hours * 5),
            )
        await prune(connection, keep_events_days=30, keep_actions_days=30)
        await roll_up_usage(connection)
    assert [row["name"] for row in await rows(migrated, "select name from gateways order by 1")] == ["lives", "silent"]
    assert len(await rows(migrated, "select 1 from gateway_demand")) == 2
    assert [row["source"] for row in await rows(migrated, "select source from wakes")] == ["gateway:lives"]
    assert len(await rows(migrated, "select 1 from usage_flushes")) == 2, "numbers of batches are kept for a week"
