"""Change notifications are coalesced and bounded, and an overflow becomes a resync."""

import asyncio

import pytest

from controller.live import change_fanout as module
from controller.live.change_fanout import ChangeFanout


async def test_repeated_changes_count_once() -> None:
    hints = ChangeFanout()
    hints.publish("status", "before")
    with hints.subscribe() as subscription:
        for kind, object_id in (("status", "a"), ("status", "a"), ("status", "b"), ("worker", "w")):
            hints.publish(kind, object_id)
        pending = await subscription.take()
        assert not pending.resync
        assert pending.of("status") == {"a", "b"}
        assert pending.of("status", "worker", "none") == {"a", "b", "w"}
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await subscription.take()


async def test_too_many_or_unnamed_changes_are_a_resync() -> None:
    hints = ChangeFanout()
    with hints.subscribe() as far_behind, hints.subscribe() as other:
        for n in range(module.MAX_PENDING + 10):
            hints.publish("status", str(n))
        pending = await far_behind.take()
        assert pending.resync
        assert pending.ids == {}
        hints.publish("status", "a")
        assert (await far_behind.take()).ids == {"status": frozenset({"a"})}
        await other.take()
        hints.publish("*", None)
        assert (await other.take()).resync
