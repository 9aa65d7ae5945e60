"""What is still to be told on the present connection. The latest state of a process is enough; order is kept."""

import asyncio
from collections import deque
from typing import Final

from agent.records import Key
from schemas.wire import CommandResult, Heartbeat, InventoryChanged, ProcessReport

Message = CommandResult | Heartbeat | InventoryChanged | ProcessReport
_MESSAGES_MAX: Final = 20_000


class OutboxFullError(Exception):
    """The connection takes nothing; it has to be made anew."""


class Outbox:
    """Two queues: messages in order, and one report per process in the order of their sequence numbers.

    That order matters: the controller acknowledges "all up to n", so none below n may still be waiting here.
    """

    def __init__(self) -> None:
        self._messages: deque[CommandResult | Heartbeat | InventoryChanged] = deque()
        self._reports: dict[Key, ProcessReport] = {}
        self._filled = asyncio.Event()

    def say(self, message: CommandResult | Heartbeat | InventoryChanged) -> None:
        """Queues a message.

        Raises:
            OutboxFullError: too many are waiting.
        """
        if len(self._messages) >= _MESSAGES_MAX:
            raise OutboxFullError
        self._messages.append(message)
        self._filled.set()

    def report(self, report: ProcessReport) -> None:
        """Queues a process's state; an older one of the same process that still waits is replaced."""
        key = Key(report.instance, report.epoch, report.rank)
        waiting = self._reports.get(key)
        if waiting is not None and waiting.seq >= report.seq:
            return
        self._reports.pop(key, None)
        self._reports[key] = report
        self._filled.set()

    def clear(self) -> None:
        """Forgets all: a new connection's hello tells the whole."""
        self._messages.clear()
        self._reports.clear()
        self._filled.clear()

    async def next(self) -> Message:
        """The next message; waits as long as there is none, so the caller owns the limit."""
        while True:
            if self._messages:
                return self._messages.popleft()
            if self._reports:
                return self._reports.pop(next(iter(self._reports)))
            self._filled.clear()
            await self._filled.wait()
