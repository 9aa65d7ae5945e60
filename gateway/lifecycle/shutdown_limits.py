"""The limits of a gateway's shutdown: each step has one, and failures are logged.

`Gateway.drain` and `Gateway.stop` in `gateway/gateway.py` have the order of the steps; `run_gateway` in
`gateway/daemon.py` calls them when the process shall end.
Limits are counted in ticks of those that wait. A clock would also count while the process is stopped, as by SIGSTOP or
by a computer's sleep, and all limits would be over when it continues.
"""

import asyncio
import contextlib
import inspect
import math
import os
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

import structlog

_DRAIN_MARGIN_S: Final = 2.0
_STOP_LIMIT_S: Final = 20.0  # of all steps of a stop together; each has a limit of its own, and most are shorter
_UNWIND_S: Final = 0.2  # for what was cancelled
_LAST_MARGIN_S: Final = 10.0
_TICK_S: Final = 0.25
_LOG_S: Final = 2.0  # the longest wait for the last words to be written

Step = Callable[[], Awaitable[None] | None]

log = structlog.get_logger(__name__)


class Stop(asyncio.Event):
    """Set when a process shall end; `replaced`: another one serves its socket already."""

    replaced = False


class Watch:
    """Watches tasks of which none may end before the gateway stops. `failed`: one has, which is a defect."""

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
        """Waits for the drain, at most until its deadline. A task that fails does not end answers."""
        drain = asyncio.create_task(in_time("drain", lambda: draining, drain_s + _DRAIN_MARGIN_S), name="drain")
        try:
            while not drain.done():
                await asyncio.wait({drain, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
                self._note("a task of the gateway has failed while it drains")
            self.failed |= not await drain
        finally:
            drain.cancel()

    def _note(self, message: str) -> None:
        ended = {task for task in self._tasks if task.done()}
        for task in ended:
            error = None if task.cancelled() else task.exception()
            log.error(message, task=task.get_name(), exc_info=error)
        self._tasks -= ended
        self.failed |= bool(ended)


async def each_in_time(steps: Sequence[tuple[str, Step]], limit_s: float | None = None) -> bool:
    """Runs named steps of the shutdown one after another; returns whether all went well.

    Each may take half of the time that is left of `limit_s`.
    """
    left_s = _STOP_LIMIT_S if limit_s is None else limit_s
    loop = asyncio.get_running_loop()
    well = True
    for name, step in steps:
        began = loop.time()
        well &= await in_time(name, step, left_s / 2)
        left_s -= min(loop.time() - began, left_s / 2)
    return well


async def in_time(name: str, step: Step, limit_s: float) -> bool:
    """Runs a step of the shutdown; returns whether it went well. Errors are logged.

    It is a task of its own: a cancelled step does not cancel the shutdown, and a step that ignores its cancel does not
    hold it.
    """
    task = asyncio.create_task(_run(step), name=name)
    try:
        if not await _done_within(task, limit_s):
            log.error("gateway did not end in time", step=name, limit_s=limit_s)
            return False
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_UNWIND_S)
    if task.cancelled():
        log.error("a step of the gateway's end was cancelled", step=name)
        return False
    if (error := task.exception()) is not None:
        log.error("gateway failed while it ended", step=name, exc_info=error)
        return False
    return True


async def _run(step: Step) -> None:
    result = step()
    if inspect.isawaitable(result):
        await result


async def _done_within(task: asyncio.Task[None], limit_s: float) -> bool:
    """Whether the task ends within the limit, counted in ticks of this loop."""
    tick_s = min(_TICK_S, limit_s)
    for _ in range(math.ceil(limit_s / tick_s) if tick_s > 0 else 1):
        await asyncio.wait({task}, timeout=tick_s)
        if task.done():
            return True
    return False


@contextlib.contextmanager
def end_at_last(drain_s: float) -> Iterator[None]:
    """Ends the process with exit code 1, and writes where it hung, if the context does not end in time."""
    ended = threading.Event()
    limit_s = drain_s + _DRAIN_MARGIN_S + _STOP_LIMIT_S + _LAST_MARGIN_S
    watching = threading.Thread(target=_end_unless, args=(ended, limit_s), name="end-at-last", daemon=True)
    try:
        watching.start()
    except RuntimeError:  # no more threads: those that started this process have limits too
        log.exception("the gateway's end is not watched")
    try:
        yield
    finally:
        ended.set()


def _end_unless(ended: threading.Event, limit_s: float) -> None:
    for _ in range(math.ceil(limit_s / _TICK_S)):
        if ended.wait(_TICK_S):
            return
    writing = threading.Thread(target=_log_stacks, args=(limit_s,), name="last-words", daemon=True)
    try:
        writing.start()
        writing.join(_LOG_S)  # what reads them may hang
    finally:
        os._exit(1)


def _log_stacks(limit_s: float) -> None:
    if sys.stderr is None:
        return
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    words = [f"Timeout: the gateway did not end within {limit_s:g} s\n"]
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - documented
        words += f"Thread {names.get(ident, ident)}:\n", *traceback.format_stack(frame)
    with contextlib.suppress(OSError, ValueError):
        os.write(sys.stderr.fileno(), "".join(words).encode(errors="replace"))
