"""Looks at samples and steps of deployments alternate, and no sample is skipped by both."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from controller.reconcilers import policies
from controller.runtime import tasks as time_slice
from controller.store.core.database import Database
from support.database.policy_ledger import PolicyLedger, settle

_LOOK_S = 0.5


async def test_a_sample_that_arrives_while_a_step_begins_to_watch_its_gpu_counts(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await PolicyLedger.make(db)
    await world.deployment()
    await world.samples("d-0", dict.fromkeys((1, 11, 21), 0))
    leader = await world.leader()
    await leader.watch.poll()
    observed, go_on = asyncio.Event(), asyncio.Event()
    observe = policies.observe_policies

    async def observe_slowly(connection: Any, uids: Any) -> Any:
        facts = await observe(connection, uids)
        observed.set()
        await go_on.wait()
        return facts

    monkeypatch.setattr(policies, "observe_policies", observe_slowly)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(settle(leader))
        await observed.wait()
        await world.samples("d-0", {0.5: 95})
        looking = group.create_task(leader.watch.poll())
        await asyncio.wait({looking}, timeout=_LOOK_S)  # it may wait for the step, or be done: the sample must count
        go_on.set()
    await world.samples("d-0", dict.fromkeys((31, 41, 51, 61, 71), 0))
    await leader.watch.poll()
    await settle(leader)
    assert await world.verdicts() == {"d-0": ("busy", "busy")}
    assert await world.actions() == []


async def test_many_are_judged_in_pieces_and_what_a_step_judges_meanwhile_is_left_to_it(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await PolicyLedger.make(db)
    uid = await world.deployment()
    await world.idle("d-0")
    leader = await world.leader()
    await settle(leader)
    await settle(leader)  # its facts hold the verdict that the first one wrote
    watch, judged, ticks = leader.watch, leader.watch._metrics.verdicts, [0]

    async def tick() -> None:
        while True:
            ticks[0] += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(time_slice, "_SLICE_S", 0.0)
    ticking, before = asyncio.create_task(tick()), len(judged)
    assert await watch.judge([(uid, "d-0")] * 100, world.now) == set()
    ticking.cancel()
    assert ticks[0] >= 100, "other work has its turn between two"
    assert len(judged) == before + 100
    late = world.now + 3600
    asyncio.get_running_loop().call_soon(lambda: watch._known.update({uid: replace(watch._known[uid])}))
    assert await watch.judge([(uid, "d-0")], late) == set(), "a step has judged it meanwhile"
    assert await watch.judge([(uid, "d-0")], late) == {uid}
