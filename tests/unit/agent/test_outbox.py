import asyncio

import pytest

from agent import outbox as outbox_module
from agent.outbox import Outbox, OutboxFullError
from schemas.wire import CommandResult, ProcessReport


def _report(instance: str, seq: int) -> ProcessReport:
    return ProcessReport(instance=instance, epoch=1, seq=seq, state="running")


async def _all(outbox: Outbox) -> list[object]:
    told: list[object] = []
    while True:
        try:
            async with asyncio.timeout(0.01):
                told.append(await outbox.next())
        except TimeoutError:
            return told


async def test_the_latest_state_is_enough_and_numbers_rise() -> None:
    outbox = Outbox()
    for name, seq in (("a", 1), ("b", 2), ("a", 3), ("c", 4), ("b", 2)):
        outbox.report(_report(name, seq))
    assert await _all(outbox) == [_report("b", 2), _report("a", 3), _report("c", 4)]


async def test_a_repeated_report_does_not_go_behind_newer_ones() -> None:
    outbox = Outbox()
    for name, seq in (("a", 1), ("b", 2), ("a", 1)):
        outbox.report(_report(name, seq))
    assert await _all(outbox) == [_report("a", 1), _report("b", 2)]


async def test_hello_replaces_what_waits() -> None:
    outbox = Outbox()
    outbox.report(_report("a", 1))
    outbox.clear()
    assert await _all(outbox) == []


async def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "_MESSAGES_MAX", 2)
    outbox = Outbox()
    result = CommandResult(command_id=1, outcome="accepted")
    outbox.say(result)
    outbox.say(result)
    with pytest.raises(OutboxFullError):
        outbox.say(result)
