"""Stale state: a reconciler that acts on an earlier snapshot writes nothing wrong."""

import os
from collections import Counter

import pytest

from controller.domain.effects import StaleError
from controller.store.core.database import Database
from controller.store.workers.maintenance import set_maintenance
from support.database.ledger import add_deployment, add_host, rows
from support.leading.awaits import Awaits
from support.leading.failpoints import Failpoints
from support.leading.handover import Handover
from support.leading.lifecycle import ACTS, Crew, World, differences
from support.leading.stale import PastDatabase, act_on, moments
from support.standins.hosts_by_hand import set_heartbeat

# In moments; there are five in a round of steps, so the far ones reach back over several acts.
LAGS = (1, 2, 3, 5, 8, 13, 21, 34)
NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
EVERY = 1 if NIGHTLY else 3  # of so many moments one is acted upon; with five in a round, each kind of moment comes by


async def begin(db: Database) -> Handover:
    return await Handover.begin(await World.make(db), db, Failpoints(Awaits(())))


@pytest.mark.parametrize("offset", range(len(LAGS)) if NIGHTLY else (0,))
async def test_an_older_snapshot_changes_nothing(db: Database, offset: int) -> None:
    """At each moment a second crew of the same term acts on an earlier snapshot; the pictures stay the same."""
    plain = await begin(db)
    for act in ACTS:
        await plain.run(act)
    await plain.crew.aclose()
    handover = await begin(db)
    seen = 0
    lost: Counter[str] = Counter()
    async with moments(db.dsn, max(LAGS) + 1) as past:

        async def look_back() -> None:
            nonlocal seen
            await past.remember()
            seen += 1
            handover.crew.passes.mark_backlog()  # so placement has something to do
            lag = LAGS[(seen // EVERY + offset) % len(LAGS)]
            if lag < len(past) and seen % EVERY == 0:
                before = await handover.world.trace()
                lost.update(await act_on(db, past[lag], handover.crew.term))
                if await handover.world.trace() != before:
                    await handover.world.check()

        handover.between = look_back
        for act in ACTS:
            await handover.run(act)
    assert differences(handover.pictures, plain.pictures) == []
    await handover.crew.aclose()
    assert lost.keys() == {"workers", "instances", "placement"}, "not all of them were ever stale"


async def test_a_worker_that_reported_since_is_not_lost(db: Database) -> None:
    handover = await begin(db)
    await handover.run(ACTS[0])
    w2 = handover.world.workers["w2"].id
    async with moments(db.dsn, 1) as past:
        await set_heartbeat(db, w2, silent=True)
        await past.remember()
        await set_heartbeat(db, w2)
        with pytest.raises(StaleError):
            await Crew(PastDatabase(db, past[0]), handover.crew.term).step_workers()
    assert await rows(db, "select 1 from workers where phase <> 'ready'") == []
    await handover.crew.aclose()


async def test_an_outdated_step_writes_no_event_twice(db: Database) -> None:
    """An event alone has no row whose phase could guard it."""
    handover = await begin(db)
    await handover.run(ACTS[0])
    instance = (await handover.world.instances("whole"))[0]
    async with db.transaction() as connection:
        await connection.execute("update instances set failures = 1 where id = $1", instance)
    async with moments(db.dsn, 1) as past:
        await past.remember()
        await handover.settle()
        assert "instances" in await act_on(db, past[0], handover.crew.term)
    assert await rows(db, "select count(*) as n from events where reason = 'stable'") == [{"n": 1}]
    await handover.crew.aclose()


async def test_capacity_of_a_lost_race_can_be_claimed_again(db: Database) -> None:
    """Capacity that the inventory reserved in memory is released, though no row of the device has changed."""
    await add_host(db, "w", gpus=1)
    await add_deployment(db, "d", resources={"gpus": 1})
    crew = await Crew.begin(db)
    await crew.step_instances()
    async with moments(db.dsn, 1) as past:
        await past.remember()
        await set_maintenance(db, "w", "cordon")
        crew.placement._database = PastDatabase(db, past[0])
        await crew.step_placement()
    assert await rows(db, "select 1 from claims") == []
    crew.placement._database = db
    await set_maintenance(db, "w", "uncordon")
    await crew.step_placement()
    assert await crew.phases() == ["scheduled"]
    await crew.aclose()
