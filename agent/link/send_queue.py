"""The messages to send on the present connection: in order, and the latest report of each process."""

import asyncio
from collections import deque
from typing import Final

from agent.state.process_records import ProcessKey
from schemas.wire import CommandResult, Heartbeat, InventoryChanged, ProcessReport

Message = CommandResult | Heartbeat | InventoryChanged
_MESSAGES_MAX: Final = 20_000


class SendQueueFullError(Exception):
    """The controller does not read; a new connection is needed."""


class SendQueue:
    """Messages first, in order; then one report per process, in the order of their sequence numbers.

    That order matters: the controller acknowledges "all up to n", so no report below n may still be queued.
    """

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._reports: dict[ProcessKey, ProcessReport] = {}
        self._filled = asyncio.Event()

    def add(self, message: Message) -> None:
        """Queues a message.

        Raises:
            SendQueueFullError: the queue is full.
        """
        if len(self._messages) >= _MESSAGES_MAX:
            raise SendQueueFullError("the send queue is full")
        self._messages.append(message)
        self._filled.set()

    def add_report(self, report: ProcessReport) -> None:
        """Queues a process's state; an older state of the same process is replaced."""
        key = ProcessKey(report.instance, report.epoch, report.rank)
        queued = self._reports.get(key)
        if queued is not None and queued.seq >= report.seq:
            return
        self._reports.pop(key, None)
        self._reports[key] = report
        self._filled.set()

    def clear(self) -> None:
        """Drops everything: a new connection's hello reports it all."""
        self._messages.clear()
        self._reports.clear()
        self._filled.clear()

    async def next(self) -> Message | ProcessReport:
        """The next message; waits while there is none, so the caller sets the limit."""
        while True:
            if self._messages:
                return self._messages.popleft()
            if self._reports:
                return self._reports.pop(next(iter(self._reports)))
            self._filled.clear()
            await self._filled.wait()
