"""Reads the GPUs through a child process, so that a hanging driver costs one reading and never blocks the agent."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

import structlog
from pydantic import Field

from agent.clock import Clock, boot_clock
from agent.errors import NoGpusError
from agent.gpus.reader import GpuReading, GpuWork
from schemas.wire import DeviceFacts, Wire

READ_LIMIT_S: Final = 2.0
_FIRST_LIMIT_S: Final = 15.0  # without persistence mode, the driver initializes every GPU at the first call
_BACKOFF_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
_MAX_LINE_BYTES: Final = 4 * 2**20
_REAP_LIMIT_S: Final = 1.0

log = structlog.get_logger()


class _UnreadableGpu(Wire):
    index: int
    error: str


class _Answer(Wire):
    """A line of the child: either `fatal`, or driver and GPUs, with `work` if it was asked for."""

    fatal: str | None = None
    driver: str | None = None
    gpus: tuple[DeviceFacts | _UnreadableGpu, ...] = ()
    work: dict[str, GpuWork] = Field(default_factory=dict)


class ChildReader:
    """Asks a child process in JSON lines. A hung or dead child is killed, and started again after a backoff."""

    def __init__(self, argv: Sequence[str] = (), *, limit_s: float = READ_LIMIT_S, clock: Clock = boot_clock) -> None:
        """`argv` of the child; empty: this package's NVML reader."""
        self._argv = tuple(argv) or (sys.executable, "-P", "-m", "agent.gpus.nvml", str(os.getpid()))
        self._limit_s = limit_s
        self._clock = clock
        self._child: asyncio.subprocess.Process | None = None
        self._asking = asyncio.Lock()
        self._failures = 0
        self._not_before_s = float("-inf")
        self._driver: str | None = None
        self._known: dict[int, DeviceFacts] = {}

    async def open(self) -> None:
        """Starts the child and asks once.

        Raises:
            NoGpusError: NVML does not load. If the child hangs, the GPUs are only unknown for now.
        """
        answer = await self._ask(b"read\n", max(self._limit_s, _FIRST_LIMIT_S))
        if answer is not None and answer.fatal is not None:
            await self.aclose()
            raise NoGpusError(
                f"no GPUs can be read: NVML does not load ({answer.fatal}). Install the NVIDIA driver on this host,"
                " or simulate a host with --simulate FILE"
            )

    async def read(self) -> tuple[DeviceFacts, ...] | None:
        """Every GPU now; None if the child hangs or is dead, or NVML fails."""
        reading = await self._read(b"read\n")
        return None if reading is None else reading.gpus

    async def sample(self) -> GpuReading | None:
        """Every GPU now, and its processes."""
        return await self._read(b"sample\n")

    async def driver(self) -> str | None:
        """The driver's version at the last successful reading."""
        return self._driver

    async def aclose(self) -> None:
        """Ends the child."""
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        # In an uninterruptible driver call the child cannot be reaped now; the loop's child watcher reaps it later.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REAP_LIMIT_S):
                await child.wait()

    async def _read(self, question: bytes) -> GpuReading | None:
        answer = await self._ask(question, self._limit_s)
        if answer is None or answer.fatal is not None:
            return None
        self._driver = answer.driver
        gpus = tuple(facts for gpu in answer.gpus if (facts := self._facts(gpu)) is not None)
        return GpuReading(gpus, answer.work)

    def _facts(self, gpu: DeviceFacts | _UnreadableGpu) -> DeviceFacts | None:
        """A GPU that cannot be read is reported as unhealthy, with its last known facts."""
        if isinstance(gpu, DeviceFacts):
            self._known[gpu.index] = gpu
            return gpu
        known = self._known.get(gpu.index)
        if known is None:
            log.warning("GPU never read", index=gpu.index, error=gpu.error)
            return None
        return known.model_copy(
            update={"health": "unhealthy", "health_reason": gpu.error, "used_mib": None, "utilization": None}
        )

    async def _ask(self, question: bytes, limit_s: float) -> _Answer | None:
        async with self._asking:
            if self._clock() < self._not_before_s:
                return None
            try:
                async with asyncio.timeout(limit_s):
                    answer = await self._exchange(question)
            except (TimeoutError, OSError, EOFError, ValueError) as error:
                await self._failed(error)
                return None
            except asyncio.CancelledError:
                await self.aclose()  # a late answer would be taken for the next question's
                raise
            self._failures = 0
            return answer

    async def _exchange(self, question: bytes) -> _Answer:
        if self._child is None:
            self._child = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                limit=_MAX_LINE_BYTES,
            )
        if self._child.stdin is None or self._child.stdout is None:
            raise AssertionError("the child was started with pipes")
        self._child.stdin.write(question)
        await self._child.stdin.drain()
        line = await self._child.stdout.readline()
        if not line:
            raise EOFError("the child exited")
        return _Answer.model_validate_json(line)

    async def _failed(self, error: Exception) -> None:
        delay_s = _BACKOFF_S[min(self._failures, len(_BACKOFF_S) - 1)]
        if self._failures == 0:
            log.warning("GPUs not read", error=repr(error), retry_in_s=delay_s)
        self._failures += 1
        self._not_before_s = self._clock() + delay_s
        await self.aclose()
