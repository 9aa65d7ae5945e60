"""A task of the gateway ends only by a defect; then the process ends, and its successor serves."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from controller.live.change_fanout import ChangeFanout
from gateway.daemon import Stop, _until_stopped
from gateway.gateway import Gateway
from http1.bodies import Bodies
from support.database.away import AwayDatabase

LIMIT_S = 10.0


async def fails() -> None:
    raise ValueError("a defect")


async def returns() -> None: ...


@pytest.mark.parametrize(("work", "error"), [(fails, "a defect"), (returns, "None")])
async def test_a_task_that_ends_ends_the_process(work: Callable[[], Awaitable[None]], error: str) -> None:
    lasting = asyncio.create_task(asyncio.sleep(LIMIT_S))
    ended = asyncio.ensure_future(work())
    with capture_logs() as logs:
        async with asyncio.timeout(LIMIT_S / 2):
            assert await _until_stopped(Stop(), {ended, lasting})  # type: ignore[arg-type]
    assert [(line["task"], str(line["exc_info"])) for line in logs] == [(ended.get_name(), error)]  # type: ignore[attr-defined]
    lasting.cancel()


async def test_a_stop_is_taken_for_what_it_is() -> None:
    stop = Stop()
    lasting = asyncio.create_task(asyncio.sleep(LIMIT_S))
    asyncio.get_running_loop().call_soon(stop.set)
    with capture_logs() as logs:
        assert not await _until_stopped(stop, {lasting})  # type: ignore[arg-type]
    assert not logs
    lasting.cancel()


async def test_all_that_a_gateway_starts_is_watched() -> None:
    before = asyncio.all_tasks()
    database = AwayDatabase()
    gateway = Gateway(
        database, ChangeFanout(), ("127.0.0.1", 9),  # type: ignore[arg-type]  # it is away
        bodies=lambda refused: Bodies(2**20, 2**20, refused=refused),
    )  # fmt: skip
    await gateway.start(socket.create_server(("127.0.0.1", 0)))
    started = {task.get_name() for task in asyncio.all_tasks() - before if not task.get_name().startswith("Task-")}
    assert started == {task.get_name() for task in gateway.tasks}
    assert len(started) == 6
    await gateway.close(0.0)
    assert all(task.done() for task in gateway.tasks)
