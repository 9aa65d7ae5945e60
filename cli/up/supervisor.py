"""Supervises services in one event loop: if one fails, all are stopped, in order and in limited time."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

FIRST_STOP_S: Final = 7.0  # for all services but the first: engines need up to five seconds
BEFORE_STOP_S: Final = 2.0  # of the time above
LAST_STOP_S: Final = 2.0  # at least, for the first service, which other services need; their unused time is added
FORCED_STOP_S: Final = 3.0
_CANCEL_S: Final = 0.4
_CAUSE_S: Final = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Service:
    """A running service. `task` ends with the exit code after `stop` is set."""

    name: str
    task: asyncio.Task[int]
    stop: asyncio.Event


class Supervisor:
    """Starts services, waits for a signal or a failure, and stops them."""

    def __init__(
        self, on_force: Callable[[], None] = lambda: None, before_stop: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """`on_force`: called once, at a second signal or after the limit. `before_stop`: awaited before most stop."""
        self._on_force = on_force
        self._before_stop = before_stop
        self._services: list[Service] = []
        self._wake = asyncio.Event()
        self._stop_requested = asyncio.Event()
        self._forced = asyncio.Event()

    def request_stop(self) -> None:
        """Requests an orderly stop. A second call makes it quick."""
        if self._stop_requested.is_set():
            self._force_stop()
        self._stop_requested.set()
        self._wake.set()

    def start(self, name: str, run: Callable[[asyncio.Event], Awaitable[int]]) -> Service:
        """Starts a service. `run` gets the event that requests its stop."""
        stop = asyncio.Event()

        async def running() -> int:
            return await run(stop)

        service = Service(name, asyncio.create_task(running(), name=name), stop)
        service.task.add_done_callback(self._on_end)
        self._services.append(service)
        return service

    async def wait(self, script: asyncio.Task[Any]) -> str | None:
        """Waits for a stop request (None), or until a service or `script` fails (the reason).

        `script` starts the services. It may end, but not with an exception.
        """
        script.add_done_callback(self._on_end)
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._stop_requested.is_set():
                return None
            failed = script.done() and (script.cancelled() or script.exception() is not None)
            if failed and self._services:  # often the cause is a service that is about to end
                tasks = [service.task for service in self._services]
                await asyncio.wait(tasks, timeout=_CAUSE_S, return_when=asyncio.FIRST_COMPLETED)
            ended = [service for service in self._services if service.task.done()]
            if ended:
                return _why(ended[0])
            if failed:
                error = None if script.cancelled() else script.exception()
                return "the start was cancelled" if error is None else _reason(error)

    async def stop_all(self) -> list[str]:
        """Stops all services within ten seconds, the first service last. Returns the names of cancelled services."""
        self._stop_requested.set()
        first, others = self._services[:1], self._services[1:]
        loop = asyncio.get_running_loop()
        started = loop.time()
        await self._prepare_stop()
        late = await self._stop(others, FIRST_STOP_S - (loop.time() - started))
        left_s = FIRST_STOP_S - (loop.time() - started)
        late += await self._stop(first, LAST_STOP_S + max(left_s, 0.0))
        for service in self._services:
            if service.task.done() and not service.task.cancelled() and service.task.exception() is not None:
                # The terminal shows only the reason.
                log.info("service failed: %s", service.name, exc_info=service.task.exception())
        return late

    async def _prepare_stop(self) -> None:
        if self._before_stop is None or len(self._services) <= 1:  # it prepares for the end of later services
            return
        tasks = [
            asyncio.create_task(_awaited(self._before_stop), name="before the stop"),
            asyncio.create_task(self._forced.wait(), name="forced stop"),
        ]
        await asyncio.wait(tasks, timeout=BEFORE_STOP_S, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=_CANCEL_S)

    async def _stop(self, services: Sequence[Service], limit_s: float) -> list[str]:
        for service in services:
            service.stop.set()
        tasks = {service.task for service in services}
        forced = asyncio.create_task(self._forced.wait(), name="forced stop")
        loop = asyncio.get_running_loop()
        give_up = loop.time() + limit_s
        try:
            while not all(task.done() for task in tasks) and loop.time() < give_up:
                if self._forced.is_set():
                    give_up = min(give_up, loop.time() + FORCED_STOP_S)
                    await asyncio.wait(tasks, timeout=give_up - loop.time())
                else:
                    left = {task for task in tasks if not task.done()}
                    timeout = give_up - loop.time()
                    await asyncio.wait({*left, forced}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            forced.cancel()
        late = [service for service in services if not service.task.done()]
        if late:
            self._force_stop()
        for service in late:
            service.task.cancel()
        if late:
            await asyncio.wait([service.task for service in late], timeout=_CANCEL_S)
        return [service.name for service in late]

    def _force_stop(self) -> None:
        if not self._forced.is_set():
            self._forced.set()
            self._on_force()

    def _on_end(self, _: asyncio.Task[Any]) -> None:
        self._wake.set()


async def _awaited(call: Callable[[], Awaitable[None]]) -> None:
    try:
        await call()
    except Exception:  # the services are stopped in any case
        log.exception("the stop was not prepared")


def _why(service: Service) -> str:
    if service.task.cancelled():
        return f"{service.name} was cancelled"
    error = service.task.exception()
    if error is None:
        return f"{service.name} exited unexpectedly with code {service.task.result()}"
    return f"{service.name} failed: {_reason(error)}"


def _reason(error: BaseException) -> str:
    """The message of an error, or the messages of a group."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_reason(inner) for inner in error.exceptions)
    return str(error) or type(error).__name__
