import asyncio

import pytest

from cli.up import parts as parts_module
from cli.up.parts import Parts


def obedient(log: list[str], name: str, code: int = 0):
    async def run(stop: asyncio.Event) -> int:
        log.append(f"{name} up")
        await stop.wait()
        log.append(f"{name} down")
        return code

    return run


async def deaf(_stop: asyncio.Event) -> int:
    await asyncio.Event().wait()
    return 0


async def idle() -> None:
    """A script that has done its work."""


async def attended(parts: Parts) -> str | None:
    script = asyncio.create_task(idle())
    async with asyncio.timeout(10):
        return await parts.attend(script)


async def test_the_first_part_is_stopped_last():
    log: list[str] = []
    parts = Parts()
    for name in ("controller", "agent-1", "agent-2"):
        parts.start(name, obedient(log, name))
    asyncio.get_running_loop().call_soon(parts.ask_to_stop)
    assert await attended(parts) is None
    assert await parts.stop_all() == []
    assert log[-1] == "controller down"
    assert sorted(log[3:5]) == ["agent-1 down", "agent-2 down"]


async def test_one_that_ends_by_itself_is_the_reason_and_the_others_are_stopped():
    log: list[str] = []
    parts = Parts()
    parts.start("controller", obedient(log, "controller"))

    async def ends(_stop: asyncio.Event) -> int:
        return 1

    parts.start("agent-1", ends)
    assert await attended(parts) == "agent-1 ended by itself with code 1"
    assert await parts.stop_all() == []
    assert log == ["controller up", "controller down"]


async def test_one_that_raises_tells_why_also_out_of_a_group():
    parts = Parts()

    async def breaks(_stop: asyncio.Event) -> int:
        raise ExceptionGroup("group", [OSError("disk full"), ExceptionGroup("inner", [ValueError("bad row")])])

    parts.start("controller", breaks)
    assert await attended(parts) == "controller failed: disk full; bad row"
    assert await parts.stop_all() == []


async def test_a_script_that_fails_is_a_reason_one_that_ends_is_none():
    parts = Parts()
    parts.start("controller", obedient([], "controller"))

    async def breaks() -> None:
        raise ValueError("no key")

    async with asyncio.timeout(10):
        assert await parts.attend(asyncio.create_task(breaks())) == "no key"
    assert await parts.stop_all() == []


async def test_a_part_that_ends_is_the_reason_rather_than_the_script_that_it_took_along():
    parts = Parts()
    script_failed = asyncio.Event()

    async def ends_a_little_later(_stop: asyncio.Event) -> int:
        await script_failed.wait()
        await asyncio.sleep(0.05)
        return 3

    async def breaks() -> None:
        script_failed.set()
        raise ValueError("connection refused")

    parts.start("the controller", ends_a_little_later)
    async with asyncio.timeout(10):
        assert await parts.attend(asyncio.create_task(breaks())) == "the controller ended by itself with code 3"


async def test_what_does_not_listen_is_cut_off_in_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parts_module, "FIRST_STOP_S", 0.2)
    hurried: list[bool] = []
    log: list[str] = []
    parts = Parts(on_hurry=lambda: hurried.append(True))
    parts.start("controller", obedient(log, "controller"))
    parts.start("agent-1", deaf)
    async with asyncio.timeout(10):
        assert await parts.stop_all() == ["agent-1"]
    assert hurried == [True]
    assert log[-1] == "controller down"


async def test_a_second_signal_hurries(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parts_module, "FIRST_STOP_S", 3600)
    monkeypatch.setattr(parts_module, "HURRIED_STOP_S", 0.1)
    killed = asyncio.Event()
    parts = Parts(on_hurry=killed.set)
    parts.start("controller", obedient([], "controller"))

    async def waits_for_its_engine(_stop: asyncio.Event) -> int:
        await killed.wait()
        return 0

    parts.start("agent-1", waits_for_its_engine)
    parts.ask_to_stop()
    asyncio.get_running_loop().call_later(0.1, parts.ask_to_stop)
    async with asyncio.timeout(10):
        assert await parts.stop_all() == []
    assert killed.is_set()


def test_the_whole_stop_is_bounded_by_ten_seconds():
    cancels = 2 * parts_module._CANCEL_S
    assert parts_module.FIRST_STOP_S + parts_module.LAST_STOP_S + cancels < 10
