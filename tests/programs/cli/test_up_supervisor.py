import asyncio

import pytest

from cli.up import supervisor as supervisor_module
from cli.up.supervisor import Supervisor


def stoppable(log: list[str], name: str, code: int = 0):
    async def run(stop: asyncio.Event) -> int:
        log.append(f"{name} up")
        await stop.wait()
        log.append(f"{name} down")
        return code

    return run


async def ignores_stop(_stop: asyncio.Event) -> int:
    await asyncio.Event().wait()
    return 0


async def idle() -> None:
    """A script that is done."""


async def waited(supervisor: Supervisor) -> str | None:
    script = asyncio.create_task(idle())
    async with asyncio.timeout(10):
        return await supervisor.wait(script)


async def test_the_first_service_is_stopped_last():
    log: list[str] = []
    supervisor = Supervisor()
    for name in ("controller", "agent-1", "agent-2"):
        supervisor.start(name, stoppable(log, name))
    asyncio.get_running_loop().call_soon(supervisor.request_stop)
    assert await waited(supervisor) is None
    assert await supervisor.stop_all() == []
    assert log[-1] == "controller down"
    assert sorted(log[3:5]) == ["agent-1 down", "agent-2 down"]


async def test_an_unexpected_exit_is_the_reason_and_stops_the_others():
    log: list[str] = []
    supervisor = Supervisor()
    supervisor.start("controller", stoppable(log, "controller"))

    async def exits(_stop: asyncio.Event) -> int:
        return 1

    supervisor.start("agent-1", exits)
    assert await waited(supervisor) == "agent-1 exited unexpectedly with code 1"
    assert await supervisor.stop_all() == []
    assert log == ["controller up", "controller down"]


async def test_the_reason_of_a_failure_comes_out_of_exception_groups():
    supervisor = Supervisor()

    async def fails(_stop: asyncio.Event) -> int:
        raise ExceptionGroup("group", [OSError("disk full"), ExceptionGroup("inner", [ValueError("bad row")])])

    supervisor.start("controller", fails)
    assert await waited(supervisor) == "controller failed: disk full; bad row"
    assert await supervisor.stop_all() == []


async def test_a_failed_script_is_a_reason():
    supervisor = Supervisor()
    supervisor.start("controller", stoppable([], "controller"))

    async def fails() -> None:
        raise ValueError("no key")

    async with asyncio.timeout(10):
        assert await supervisor.wait(asyncio.create_task(fails())) == "no key"
    assert await supervisor.stop_all() == []


async def test_an_exited_service_is_the_reason_even_if_the_script_fails_first():
    supervisor = Supervisor()
    script_failed = asyncio.Event()

    async def exits_a_little_later(_stop: asyncio.Event) -> int:
        await script_failed.wait()
        await asyncio.sleep(0.05)
        return 3

    async def fails() -> None:
        script_failed.set()
        raise ValueError("connection refused")

    supervisor.start("the controller", exits_a_little_later)
    async with asyncio.timeout(10):
        assert await supervisor.wait(asyncio.create_task(fails())) == "the controller exited unexpectedly with code 3"


async def test_a_service_that_ignores_the_stop_is_cancelled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(supervisor_module, "FIRST_STOP_S", 0.2)
    forced: list[bool] = []
    log: list[str] = []
    supervisor = Supervisor(on_force=lambda: forced.append(True))
    supervisor.start("controller", stoppable(log, "controller"))
    supervisor.start("agent-1", ignores_stop)
    async with asyncio.timeout(10):
        assert await supervisor.stop_all() == ["agent-1"]
    assert forced == [True]
    assert log[-1] == "controller down"


async def test_the_first_service_gets_the_time_that_the_others_leave(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(supervisor_module, "FIRST_STOP_S", 3600)
    monkeypatch.setattr(supervisor_module, "LAST_STOP_S", 0.05)

    async def ends_slowly(stop: asyncio.Event) -> int:
        await stop.wait()
        await asyncio.sleep(0.5)
        return 0

    supervisor = Supervisor()
    supervisor.start("controller", ends_slowly)
    supervisor.start("agent-1", stoppable([], "agent-1"))
    async with asyncio.timeout(10):
        assert await supervisor.stop_all() == []


async def test_a_second_signal_forces_the_stop(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(supervisor_module, "FIRST_STOP_S", 3600)
    monkeypatch.setattr(supervisor_module, "FORCED_STOP_S", 0.1)
    killed = asyncio.Event()
    supervisor = Supervisor(on_force=killed.set)
    supervisor.start("controller", stoppable([], "controller"))

    async def waits_for_its_engine(_stop: asyncio.Event) -> int:
        await killed.wait()
        return 0

    supervisor.start("agent-1", waits_for_its_engine)
    supervisor.request_stop()
    asyncio.get_running_loop().call_later(0.1, supervisor.request_stop)
    async with asyncio.timeout(10):
        assert await supervisor.stop_all() == []
    assert killed.is_set()


def test_the_whole_stop_takes_less_than_ten_seconds():
    cancels = 2 * supervisor_module._CANCEL_S
    assert supervisor_module.FIRST_STOP_S + supervisor_module.LAST_STOP_S + cancels < 10


@pytest.mark.parametrize("resigns", ["at once", "never", "with an error"])
async def test_the_first_service_gives_up_its_lead_before_the_others_stop(resigns: str, monkeypatch):
    """Else it would place instances on agents that shut down. If it does not, all stop nevertheless."""
    monkeypatch.setattr(supervisor_module, "BEFORE_STOP_S", 0.2)
    log: list[str] = []

    async def resign() -> None:
        log.append("leads no more")
        if resigns == "never":
            await asyncio.Event().wait()
        if resigns == "with an error":
            raise OSError("no database")

    supervisor = Supervisor(before_stop=resign)
    for name in ("controller", "agent-1"):
        supervisor.start(name, stoppable(log, name))
    asyncio.get_running_loop().call_soon(supervisor.request_stop)
    assert await waited(supervisor) is None
    assert await supervisor.stop_all() == []
    assert log[2:] == ["leads no more", "agent-1 down", "controller down"]
