"""Missed events: a hint only wakes, so losing one costs time and nothing else."""

import asyncio
import random

import pytest

from controller.store.core.database import Database
from support.leading.awaits import Awaits
from support.leading.failpoints import Failpoints
from support.leading.handover import Handover
from support.leading.lifecycle import ACTS, Act, World, differences
from support.leading.lossy_leader import Drops, cut_wakes, leader, shorten_resyncs

ACT_LIMIT_S = 40.0
_POLL_S = 0.01
# Those of which each needs a wake-up of another kind.
NAMES = {"apply", "exit", "refuse", "change", "drain", "uncordon", "fall_silent", "return", "roll_out", "delete_all"}
ROAD = [act for act in ACTS if act.name in NAMES]


def half(seed: int) -> Drops:
    chance = random.Random(seed)  # noqa: S311 - which ones are lost, repeatably
    return lambda _kind: chance.random() < 0.5


CASES: dict[str, Drops] = {
    "all": lambda _kind: True,
    "deployment": lambda kind: kind == "deployment",
    "process": lambda kind: kind == "process",
    "worker": lambda kind: kind == "worker",
    "half": half(7),
}


async def expected(db: Database) -> list[dict[str, str]]:
    handover = await Handover.begin(await World.make(db), db, Failpoints(Awaits(())))
    for act in ROAD:
        await handover.run(act)
    await handover.crew.aclose()
    return handover.pictures


async def play(world: World, act: Act, wanted: dict[str, str]) -> None:
    """Does the act and waits for the expected state."""
    await act.do(world)
    found: dict[str, str] = {}
    try:
        async with asyncio.timeout(ACT_LIMIT_S):
            while found != wanted:
                if not await world.hosts.run_commands():
                    await asyncio.sleep(_POLL_S)
                found = await world.picture()
    except TimeoutError:
        assert differences([found], [wanted]) == [], act.name
    await world.check()


@pytest.mark.parametrize("case", CASES)
async def test_lost_hints_cost_only_time(db: Database, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_resyncs(monkeypatch)
    pictures = await expected(db)
    world = await World.make(db)
    async with leader(db, CASES[case]) as lost:
        for act, wanted in zip(ROAD, pictures, strict=True):
            await play(world, act, wanted)
    assert lost
    if case in ("deployment", "process", "worker"):
        assert set(lost) == {case}


async def test_loops_that_never_wake_one_another_converge(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_resyncs(monkeypatch)
    cut_wakes(monkeypatch)
    pictures = await expected(db)
    world = await World.make(db)
    async with leader(db, CASES["all"]):
        for act, wanted in zip(ROAD, pictures, strict=True):
            await play(world, act, wanted)
