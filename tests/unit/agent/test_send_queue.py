import asyncio

import pytest

from agent.link import send_queue as send_queue_module
from agent.link.send_queue import SendQueue, SendQueueFullError
from schemas.wire import CommandResult, ProcessReport


def _report(instance: str, seq: int) -> ProcessReport:
    return ProcessReport(instance=instance, epoch=1, seq=seq, state="running")


async def _drain(send_queue: SendQueue) -> list[object]:
    sent: list[object] = []
    while True:
        try:
            async with asyncio.timeout(0.01):
                sent.append(await send_queue.next())
        except TimeoutError:
            return sent


async def test_only_the_latest_report_is_sent_and_numbers_rise() -> None:
    send_queue = SendQueue()
    for name, seq in (("a", 1), ("b", 2), ("a", 3), ("c", 4), ("b", 2)):
        send_queue.add_report(_report(name, seq))
    assert await _drain(send_queue) == [_report("b", 2), _report("a", 3), _report("c", 4)]


async def test_a_repeated_report_keeps_its_place() -> None:
    send_queue = SendQueue()
    for name, seq in (("a", 1), ("b", 2), ("a", 1)):
        send_queue.add_report(_report(name, seq))
    assert await _drain(send_queue) == [_report("a", 1), _report("b", 2)]


async def test_clear_drops_everything() -> None:
    send_queue = SendQueue()
    send_queue.add_report(_report("a", 1))
    send_queue.clear()
    assert await _drain(send_queue) == []


async def test_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_queue_module, "_MESSAGES_MAX", 2)
    send_queue = SendQueue()
    result = CommandResult(command_id=1, outcome="accepted")
    send_queue.add(result)
    send_queue.add(result)
    with pytest.raises(SendQueueFullError):
        send_queue.add(result)
