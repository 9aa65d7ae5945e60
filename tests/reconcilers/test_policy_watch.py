"""Looks at samples and steps of deployments alternate, and no sample is skipped by both."""

import asyncio
from typing import Any

import pytest

from controller.reconcilers import policies
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
    await leader.watch.look()
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
        looking = group.create_task(leader.watch.look())
        await asyncio.wait({looking}, timeout=_LOOK_S)  # it may wait for the step, or be done: the sample must count
        go_on.set()
    await world.samples("d-0", dict.fromkeys((31, 41, 51, 61, 71), 0))
    await leader.watch.look()
    await settle(leader)
    assert await world.verdicts() == {"d-0": ("busy", "busy")}
    assert await world.actions() == []
