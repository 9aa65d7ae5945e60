"""Follows what a container prints, over ends of Docker and of connections, until the container has ended."""

import asyncio
import contextlib
from typing import Final

import structlog

from agent.clock import boot_clock
from agent.containers.docker_engine import DockerAwayError, DockerEngine, DockerRefusalError
from agent.containers.log_copy import LogCopy

MOST_BYTES: Final = 4 * 2**20  # that are read and not written yet; and one piece more
_SILENT_S: Final = 120.0  # then the stream is opened again: it may be dead
_FLUSH_S: Final = 0.1
_RETRY_S: Final = (0.2, 1.0, 2.0, 5.0)
_LAST_WORDS_RETRY_S: Final = 0.2

log = structlog.get_logger()


class LogFollow:
    """The log of one container."""

    def __init__(self, engine: DockerEngine, name: str, copy: LogCopy) -> None:
        self.held_bytes = 0
        self._engine = engine
        self._name = name
        self._copy = copy
        self._wanted = asyncio.Event()
        self._over = asyncio.Event()
        self._held: list[bytes] = []
        self._has_space = asyncio.Event()

    def begin(self) -> None:
        """The container runs: there may be something to read."""
        self._wanted.set()

    def end(self) -> None:
        """The container has ended: `run` returns after its last words."""
        self._over.set()
        self._wanted.set()

    async def run(self) -> None:
        """Copies until the container has ended; continues after Docker was away."""
        delays = iter(_RETRY_S)
        while True:
            await self._wanted.wait()
            began_s = boot_clock()
            over = self._over.is_set()  # read before the copy, which then includes the last words
            try:
                await self._copy_stream()
            except (DockerAwayError, DockerRefusalError) as error:
                if over and isinstance(error, DockerRefusalError):
                    return
            except Exception as error:  # noqa: BLE001 - the engine runs on when the disk is full
                log.warning("log not copied", container=self._name, error=str(error))
            else:
                if over:
                    return
                if boot_clock() - began_s >= _RETRY_S[-1]:
                    delays = iter(_RETRY_S)
            delay_s = next(delays, _RETRY_S[-1])
            if over:
                await asyncio.sleep(_LAST_WORDS_RETRY_S)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._over.wait()

    async def _copy_stream(self) -> None:
        """Copies until the stream ends, or is silent for so long that it may be dead."""
        self._copy.begin()
        self._take()
        reading = asyncio.create_task(self._read(), name=f"log of {self._name}")
        try:
            while not (reading.done() and not self._held):
                if taken := self._take():
                    await asyncio.to_thread(self._copy.write, taken)
                else:
                    await asyncio.wait([reading], timeout=_FLUSH_S)
            await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self) -> None:
        async with contextlib.aclosing(self._engine.log(self._name, self._copy.since, _SILENT_S)) as read:
            async for piece in read:
                while self.held_bytes >= MOST_BYTES:
                    self._has_space.clear()
                    await self._has_space.wait()  # until the disk has taken what is held
                self._held.append(piece)
                self.held_bytes += len(piece)

    def _take(self) -> list[bytes]:
        taken, self._held, self.held_bytes = self._held, [], 0
        self._has_space.set()
        return taken
