"""Passes: a few at a time, a bounded number waiting, and none that its asker has left."""

import asyncio
import threading

import pytest

from controller.api.dry_run.allowances import AT_ONCE, MOST_WAITING, Passes
from controller.api.errors import ApiError


async def test_few_at_a_time_and_not_too_many_waiting() -> None:
    passes, go, began = Passes(), threading.Event(), threading.Semaphore(0)

    def one(number: int) -> int:
        began.release()
        assert go.wait(30)
        return number

    asked = [asyncio.create_task(passes.run(one, number)) for number in range(AT_ONCE + MOST_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(ApiError) as refused:
        await passes.run(one, -1)
    assert (refused.value.status, refused.value.code) == (503, "overloaded")
    for _ in range(AT_ONCE):
        assert await asyncio.to_thread(began.acquire, timeout=30)
    left = asked.pop()
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    go.set()
    assert await asyncio.gather(*asked) == list(range(AT_ONCE + MOST_WAITING - 1))
    assert sum(began.acquire(blocking=False) for _ in range(MOST_WAITING)) == MOST_WAITING - 1, "one was left"
    passes.close()
