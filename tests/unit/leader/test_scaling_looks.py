"""How often the autoscaler looks at all deployments."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from controller.leader.scaling_watch import LOOK_S, ScalingWatch
from controller.runtime.clock import SystemClock


@pytest.mark.looptime
async def test_looks_that_take_long_leave_their_pause_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    database: Any = None  # its reads are the test's
    watch, begun = ScalingWatch(database), []

    async def look(*, woken_alone: bool = False) -> set[str]:
        if not woken_alone:
            begun.append(asyncio.get_running_loop().time())
        await asyncio.sleep(1.5 * LOOK_S)
        return set()

    monkeypatch.setattr(watch, "look", look)
    task = asyncio.create_task(watch.run(SystemClock(), lambda _: None))
    await asyncio.sleep(20 * LOOK_S)
    task.cancel()
    assert len(begun) >= 5
    assert all(later - earlier >= 2.4 * LOOK_S for earlier, later in pairwise(begun))
