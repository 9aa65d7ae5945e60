"""Stale state: a reconciler that acts on what an earlier moment showed writes nothing wrong."""

import os
from collections import Counter

import pytest

from gpuward.controller.runtime.outcome import StaleError
from gpuward.controller.store.database import Database
from support.agent_by_hand import seat
from support.awaits import Awaits
from support.failpoints import Failpoints
from support.ledger import rows
from support.road import ACTS, Crew, World, differences
from support.shift import Shift
from support.stale import PastDatabase, act_on, moments

# In moments; there are four in a round of steps, so the far ones reach back over several acts.
LAGS = (1, 2, 3, 5, 8, 13, 21, 34)
NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
EVERY = 1 if NIGHTLY else 3  # of these moments one is acted upon: there are four in a round, so all kinds come by


async def begin(db: Database) -> Shift:
    return await Shift.begin(await World.make(db), db, Failpoints(Awaits(())))


@pytest.mark.parametrize("offset", range(len(LAGS)) if NIGHTLY else (0,))
async def test_an_older_snapshot_does_no_harm(db: Database, offset: int) -> None:
    """At each moment a second crew of the same term acts on an earlier one; the road's pictures stay the same."""
    plain = await begin(db)
    for act in ACTS:
        await plain.play(act)
    await plain.crew.aclose()
    shift = await begin(db)
    seen = 0
    lost: Counter[str] = Counter()
    async with moments(db.dsn, max(LAGS) + 1) as past:

        async def look_back() -> None:
            nonlocal seen
            await past.remember()
            seen += 1
            lag = LAGS[(seen // EVERY + offset) % len(LAGS)]
            if lag < len(past) and seen % EVERY == 0:
                before = await shift.world.trace()
                lost.update(await act_on(db, past[lag], shift.crew.term))
                if await shift.world.trace() != before:
                    await shift.world.check()

        shift.between = look_back
        for act in ACTS:
            await shift.play(act)
    assert differences(shift.pictures, plain.pictures) == []
    await shift.crew.aclose()
    assert lost.keys() == {"workers", "instances", "placement"}, "not all of them were ever stale"


async def test_a_worker_heard_of_since_is_not_given_up(db: Database) -> None:
    shift = await begin(db)
    await shift.play(ACTS[0])
    w2 = shift.world.workers["w2"].id
    async with moments(db.dsn, 1) as past:
        await seat(db, w2, silent=True)
        await past.remember()
        await seat(db, w2)
        with pytest.raises(StaleError):
            await Crew(PastDatabase(db, past[0]), shift.crew.term).step_workers()
    assert await rows(db, "select 1 from workers where phase <> 'ready'") == []
    await shift.crew.aclose()


async def test_a_step_that_was_overtaken_tells_nothing_twice(db: Database) -> None:
    """An event alone hangs on no row whose phase could guard it."""
    shift = await begin(db)
    await shift.play(ACTS[0])
    instance = (await shift.world.instances("whole"))[0]
    async with db.transaction() as connection:
        await connection.execute("update instances set failures = 1 where id = $1", instance)
    async with moments(db.dsn, 1) as past:
        await past.remember()
        await shift.settle()
        assert "instances" in await act_on(db, past[0], shift.crew.term)
    assert await rows(db, "select count(*) as n from events where reason = 'stable'") == [{"n": 1}]
    await shift.crew.aclose()
