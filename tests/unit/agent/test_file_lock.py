"""A wait for a lock that is given up leaves none behind."""

import asyncio
from pathlib import Path

import pytest

from agent.model_cache.file_lock import LockedError, file_lock, take_lock, waited_lock


async def test_a_wait_that_is_given_up_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "room.lock"

    async def work() -> None:
        async with waited_lock(path, 30.0):
            raise AssertionError("it was given up")

    with file_lock(path, 0.0):
        waiting = asyncio.create_task(work())
        await asyncio.sleep(0.1)  # the thread polls
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await asyncio.sleep(0.1)  # the thread gets the lock, most likely
    release = await asyncio.to_thread(take_lock, path, 10.0)
    release()


async def test_it_is_held_within_alone(tmp_path: Path) -> None:
    path = tmp_path / "room.lock"
    async with waited_lock(path, 1.0):
        with pytest.raises(LockedError):
            async with waited_lock(path, 0.0):
                pass
    with file_lock(path, 0.0):
        pass
