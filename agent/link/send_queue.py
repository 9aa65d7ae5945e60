"""Messages for the present connection: in order, and the latest report of each process."""

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
    """Messages first, in order; then a report per process, by sequence number.

    The controller acknowledges "all up to n", so no report below n may still be queued.
    """

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._reports: dict[ProcessKey, ProcessReport] = {}
        self._filled = asyncio.Event()

    def add(self, message: Message) -> None:
        """Raises SendQueueFullError."""
        if len(self._messages) >= _MESSAGES_MAX:
            raise SendQueueFullError("the send queue is full")
        self._messages.append(message)
        self._filled.set()

    def add_report(self, report: ProcessReport) -> None:
        """Replaces an older report of the same process."""
        key = ProcessKey(report.instance, report.epoch, report.rank)
        queued = self._reports.get(key)
        if queued is not None and queued.seq >= report.seq:
            return
        self._reports.pop(key, None)
        self._reports[key] = report
        self._filled.set()

    def clear(self) -> None:
        """Drops all messages: a new connection's hello reports the state."""
        self._messages.clear()
        self._reports.clear()
        self._filled.clear()

    async def next(self) -> Message | ProcessReport:
        """Waits for the next message. The caller sets a limit."""
        while True:
            if self._messages:
                return self._messages.popleft()
            if self._reports:
                return self._reports.pop(next(iter(self._reports)))
            self._filled.clear()
            await self._filled.wait()
