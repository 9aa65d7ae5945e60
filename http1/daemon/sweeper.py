"""Runs a check periodically. A failure is logged, and the next run follows."""

import asyncio
import math
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import structlog

from http1.daemon.log_limit import LogLimit

T = TypeVar("T")
_LOGGED: Final = LogLimit()

log = structlog.get_logger(__name__)


class Sweeper:
    """Calls `sweep` with the loop's time, again and again from `start` to `stop`.

    Deadlines are kept by sweeps, so a defect in one sweep must cost no later sweep.

    Args:
        name: the log's name for it.
        period_s: seconds between two sweeps.
        sweep: one run over all objects.

    Attributes:
        due: when the next sweep is, by the loop's clock; infinite: there is none.
        late_s: the seconds by which the newest sweep came late.
    """

    __slots__ = ("_handle", "_name", "_period_s", "_sweep", "due", "late_s")

    def __init__(self, name: str, period_s: float, sweep: Callable[[float], None]) -> None:
        self._name = name
        self._period_s = period_s
        self._sweep = sweep
        self._handle: asyncio.TimerHandle | None = None
        self.due = math.inf
        self.late_s = 0.0

    def start(self) -> None:
        """The next sweep is a period from now; called again, it changes nothing."""
        if self._handle is None:
            loop = asyncio.get_running_loop()
            self.due = loop.time() + self._period_s
            self._handle = loop.call_at(self.due, self._run, loop)

    def stop(self) -> None:
        """No sweep follows until `start`. A sweep may call it."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle, self.due = None, math.inf

    def each(self, objects: Iterable[T], look: Callable[[T], object]) -> None:
        """Checks each object, whatever happens at other objects. The collection may change."""
        for swept in list(objects):
            try:
                look(swept)
            except Exception as error:  # noqa: BLE001 - logged
                self._failed(error)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        self.late_s = now - self.due
        self._handle = None
        self.start()
        try:
            self._sweep(now)
        except Exception as error:  # noqa: BLE001 - logged
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        more = _LOGGED.admit(self._name)
        if more is not None:
            log.error("a sweep has failed", sweep=self._name, more_before=more, exc_info=error)
