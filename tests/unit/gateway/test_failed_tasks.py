"""A task of the gateway ends only by a defect; then the process ends, and its successor serves."""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from controller.live.change_fanout import ChangeFanout
from gateway import daemon
from gateway.gateway import Gateway
from gateway.lifecycle.shutdown_limits import Stop, Watch
from gateway.quotas.quota_client import QuotaClient
from gateway.settings import GatewaySettings
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
            watch = Watch({ended, lasting})  # type: ignore[arg-type]
            await watch.until_stopped(Stop())
    assert watch.failed
    assert [(line["task"], str(line["exc_info"])) for line in logs] == [(ended.get_name(), error)]  # type: ignore[attr-defined]
    lasting.cancel()


async def test_a_stop_is_taken_for_what_it_is() -> None:
    stop = Stop()
    lasting = asyncio.create_task(asyncio.sleep(LIMIT_S))
    asyncio.get_running_loop().call_soon(stop.set)
    with capture_logs() as logs:
        watch = Watch({lasting})
        await watch.until_stopped(stop)
    assert not watch.failed
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
    assert len(started) == 7
    await gateway.close(0.0)
    assert all(task.done() for task in gateway.tasks)


class Lasting:
    """A request that goes on until the gateway ends it."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    def overdue(self, _now: float) -> None: ...

    def end_for_stop(self) -> None:
        self.gateway.under_way.discard(self)  # type: ignore[arg-type]


class ClosedLater(AwayDatabase):
    """One that can be closed."""

    async def close(self) -> None: ...


class Served:
    """A gateway's process without its database: told to stop once it serves, while a request is under way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, drain_s: float) -> None:
        self.gateway: Gateway | None = None
        self.stop = Stop()
        self.drain_s = drain_s
        database = ClosedLater()

        async def opened(_url: str) -> AwayDatabase:
            return database

        def made(*args: Any, **settings: Any) -> Gateway:
            self.gateway = Gateway(*args, **settings)
            return self.gateway

        monkeypatch.setattr(daemon, "open_lazily", opened)
        monkeypatch.setattr(daemon, "Gateway", made)

    def ready(self) -> None:
        assert self.gateway is not None
        self.gateway.under_way.add(Lasting(self.gateway))  # type: ignore[arg-type]
        self.stop.set()

    async def run(self) -> int:
        url = SecretStr("postgresql://nowhere.invalid/x")
        settings = GatewaySettings(controller="http://127.0.0.1:9", drain=self.drain_s, database_url=url)
        place = daemon.Place(socket.create_server(("127.0.0.1", 0)), 0, None)
        async with asyncio.timeout(LIMIT_S):
            return await daemon.run_gateway(settings, place, self.stop, self.ready)


@pytest.mark.parametrize("number", [0, 3])
async def test_a_task_that_ends_while_it_drains_is_said_and_the_drain_has_its_time(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(monkeypatch, drain_s=0.4)
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(served.run())
    await served.stop.wait()
    began = loop.time()
    await asyncio.sleep(0.1)
    assert served.gateway is not None
    name = served.gateway.tasks[number].get_name()
    with capture_logs() as logs:
        served.gateway.tasks[number].cancel()
        assert await running == 1
    assert loop.time() - began >= 0.3, "the request had its time"
    said = [line["task"] for line in logs if line["event"] == "a task of the gateway has failed while it drains"]
    assert said == [name]
    assert [line["log_level"] for line in logs if "task" in line] == ["error"]


async def test_a_drain_that_goes_well_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    with capture_logs() as logs:
        assert await Served(monkeypatch, drain_s=0.1).run() == 0
    assert not [line for line in logs if line["log_level"] == "error"]


async def raises(_self: object) -> None:
    raise ValueError("a defect")


async def test_a_step_of_the_end_that_fails_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuotaClient, "stop", raises)
    with capture_logs() as logs:
        assert await Served(monkeypatch, drain_s=0.1).run() == 1
    assert [line["step"] for line in logs if line["log_level"] == "error"] == ["usage"]


async def test_a_database_that_does_not_close_changes_no_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClosedLater, "close", raises)
    with capture_logs() as logs:
        assert await Served(monkeypatch, drain_s=0.1).run() == 0
    assert [line["step"] for line in logs if line["log_level"] == "error"] == ["database"]


async def test_an_end_after_a_failed_start_is_watched_too(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[bool] = []

    async def fails_to_start(_self: object, listening: socket.socket) -> None:
        listening.close()
        raise ValueError("a defect")

    async def closes(_self: object) -> None:
        watched.append("end-at-last" in {thread.name for thread in threading.enumerate()})

    monkeypatch.setattr(ClosedLater, "close", closes)
    monkeypatch.setattr(Gateway, "start", fails_to_start)
    with pytest.raises(ValueError, match="a defect"):
        await Served(monkeypatch, drain_s=0.1).run()
    assert watched == [True]
