"""How often the autoscaler polls all deployments."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from controller.leader.scaling_watch import POLL_S, ScalingWatch
from controller.runtime.clock import SystemClock


@pytest.mark.looptime
async def test_polls_that_take_long_leave_their_pause_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    database: Any = None  # its reads are the test's
    watch, begun = ScalingWatch(database), []

    async def poll(*, woken_only: bool = False) -> set[str]:
        if not woken_only:
            begun.append(asyncio.get_running_loop().time())
        await asyncio.sleep(1.5 * POLL_S)
        return set()

    monkeypatch.setattr(watch, "poll", poll)
    task = asyncio.create_task(watch.run(SystemClock(), lambda _: None))
    await asyncio.sleep(20 * POLL_S)
    task.cancel()
    assert len(begun) >= 5
    assert all(later - earlier >= 2.4 * POLL_S for earlier, later in pairwise(begun))
