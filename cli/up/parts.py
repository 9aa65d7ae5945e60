"""Parts that run side by side: when one fails the others are stopped; they are stopped in order, in a bounded time.

Knows nothing of what a part does.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

FIRST_STOP_S: Final = 7.5  # for all parts but the one that was started first: engines need up to five seconds
LAST_STOP_S: Final = 1.5  # for the part that all others need
HURRIED_STOP_S: Final = 3.0
_CANCEL_S: Final = 0.4
_CAUSE_S: Final = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Part:
    """A running part. Set `stop`, and `task` ends with its exit code."""

    name: str
    task: asyncio.Task[int]
    stop: asyncio.Event


class Parts:
    """The running parts and whether they are to go on. `asked` and `hurry` are set from outside, by signals."""

    def __init__(self, on_hurry: Callable[[], None] = lambda: None) -> None:
        """`on_hurry` is called once, when a second signal asks for haste or the time is over."""
        self._on_hurry = on_hurry
        self._parts: list[Part] = []
        self._wake = asyncio.Event()
        self._asked = asyncio.Event()
        self._hurry = asyncio.Event()

    def ask_to_stop(self) -> None:
        """Ends everything in order. A second call makes it quick."""
        if self._asked.is_set():
            self._make_haste()
        self._asked.set()
        self._wake.set()

    def start(self, name: str, run: Callable[[asyncio.Event], Awaitable[int]]) -> Part:
        """Starts a part; `run` gets the event that tells it to stop."""
        stop = asyncio.Event()

        async def running() -> int:
            return await run(stop)

        part = Part(name, asyncio.create_task(running(), name=name), stop)
        part.task.add_done_callback(self._on_end)
        self._parts.append(part)
        return part

    async def attend(self, script: asyncio.Task[Any]) -> str | None:
        """Waits until asked to stop (None), or until a part or `script` fails (the reason).

        Args:
            script: what starts the parts; its end is no failure, its exception is.
        """
        script.add_done_callback(self._on_end)
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._asked.is_set():
                return None
            failed = script.done() and (script.cancelled() or script.exception() is not None)
            if failed and self._parts:  # often but the consequence of a part that is about to end: that is the reason
                tasks = [part.task for part in self._parts]
                await asyncio.wait(tasks, timeout=_CAUSE_S, return_when=asyncio.FIRST_COMPLETED)
            ended = [part for part in self._parts if part.task.done()]
            if ended:
                return _why(ended[0])
            if failed:
                error = None if script.cancelled() else script.exception()
                return "the start was cancelled" if error is None else _reason(error)

    async def stop_all(self) -> list[str]:
        """Stops all parts, the first one last, within ten seconds; returns the names of those that had to be cut."""
        self._asked.set()
        first, others = self._parts[:1], self._parts[1:]
        cut = await self._end(others, FIRST_STOP_S)
        cut += await self._end(first, LAST_STOP_S)
        for part in self._parts:
            if part.task.done() and not part.task.cancelled() and part.task.exception() is not None:
                log.info("%s failed", part.name, exc_info=part.task.exception())  # the terminal got the reason alone
        return cut

    async def _end(self, parts: Sequence[Part], limit_s: float) -> list[str]:
        for part in parts:
            part.stop.set()
        tasks = {part.task for part in parts}
        hurried = asyncio.create_task(self._hurry.wait(), name="hurry")
        loop = asyncio.get_running_loop()
        give_up = loop.time() + limit_s
        try:
            while not all(task.done() for task in tasks) and loop.time() < give_up:
                if self._hurry.is_set():
                    give_up = min(give_up, loop.time() + HURRIED_STOP_S)
                    await asyncio.wait(tasks, timeout=give_up - loop.time())
                else:
                    left = {task for task in tasks if not task.done()}
                    timeout = give_up - loop.time()
                    await asyncio.wait({*left, hurried}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurried.cancel()
        late = [part for part in parts if not part.task.done()]
        if late:
            self._make_haste()
        for part in late:
            part.task.cancel()
        if late:
            await asyncio.wait([part.task for part in late], timeout=_CANCEL_S)
        return [part.name for part in late]

    def _make_haste(self) -> None:
        if not self._hurry.is_set():
            self._hurry.set()
            self._on_hurry()

    def _on_end(self, _: asyncio.Task[Any]) -> None:
        self._wake.set()


def _why(part: Part) -> str:
    if part.task.cancelled():
        return f"{part.name} was cancelled"
    error = part.task.exception()
    if error is None:
        return f"{part.name} ended by itself with code {part.task.result()}"
    return f"{part.name} failed: {_reason(error)}"


def _reason(error: BaseException) -> str:
    """The message of an error; of a group, those of its leaves."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_reason(inner) for inner in error.exceptions)
    return str(error) or type(error).__name__
