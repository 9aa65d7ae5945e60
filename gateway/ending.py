"""How a gateway's process ends: what fails meanwhile is seen and said, and no step of it goes on for ever."""

import asyncio
import contextlib
import faulthandler
from collections.abc import Coroutine, Iterator
from typing import Any, Final

import structlog

_DRAIN_MARGIN_S: Final = 2.0
_STOP_LIMIT_S: Final = 20.0  # each part of a gateway has a limit of its own, and together they take less
_LAST_MARGIN_S: Final = 10.0

log = structlog.get_logger(__name__)


class Stop(asyncio.Event):
    """Set when a process shall end; `replaced`: another one serves its socket already."""

    replaced = False


class Watch:
    """Watches tasks of which none may end before the gateway stops, and the steps of its end.

    Attributes:
        failed: one of them has ended or failed, which is a defect.
    """

    def __init__(self, tasks: set[asyncio.Task[None]]) -> None:
        self._tasks = tasks
        self.failed = False

    async def until_stopped(self, stop: Stop) -> None:
        """Returns when `stop` is set, or when one of the tasks has ended."""
        stopping = asyncio.create_task(stop.wait(), name="stop")
        try:
            await asyncio.wait({stopping, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        self._note("a task of the gateway has failed, starting it again")

    async def while_it_drains(self, draining: Coroutine[Any, Any, None], drain_s: float) -> None:
        """Returns when the drain is over, at its deadline at the latest. Answers go on without a task that fails."""
        drain = asyncio.create_task(self.in_time("drain", draining, drain_s + _DRAIN_MARGIN_S), name="drain")
        try:
            while not drain.done():
                await asyncio.wait({drain, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
                self._note("a task of the gateway has failed while it drains")
        finally:
            drain.cancel()

    async def in_time(self, name: str, step: Coroutine[Any, Any, None], limit_s: float = _STOP_LIMIT_S) -> None:
        """Runs a step of the end, of this name. Its failure is logged, and the end goes on."""
        try:
            async with asyncio.timeout(limit_s):
                await step
        except TimeoutError:
            self.failed = True
            log.error("gateway did not end in time", step=name, limit_s=limit_s)  # noqa: TRY400 - no defect here
        except Exception:
            self.failed = True
            log.exception("gateway failed while it ended", step=name)

    def _note(self, message: str) -> None:
        ended = {task for task in self._tasks if task.done()}
        for task in ended:
            error = None if task.cancelled() else task.exception()
            log.error(message, task=task.get_name(), exc_info=error)
        self._tasks -= ended
        self.failed |= bool(ended)


@contextlib.contextmanager
def end_at_last(drain_s: float) -> Iterator[None]:
    """Ends the process with exit code 1, and writes where it hung, if what is within does not end in time.

    Args:
        drain_s: the longest time for answers, in seconds.
    """
    faulthandler.dump_traceback_later(drain_s + _DRAIN_MARGIN_S + _STOP_LIMIT_S + _LAST_MARGIN_S, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
