"""Reads the GPUs through a child process, so that a hanging driver costs a reading and never the agent."""

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
from schemas.base import Wire
from schemas.wire import DeviceFacts

READ_LIMIT_S: Final = 2.0
_FIRST_LIMIT_S: Final = 15.0  # a driver without persistence mode wakes every GPU at the first call
_BACKOFF_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
_MAX_LINE_BYTES: Final = 4 * 2**20
_REAP_LIMIT_S: Final = 1.0

log = structlog.get_logger()


class _Broken(Wire):
    index: int
    error: str


class _Answer(Wire):
    """A line of the child: `fatal`, or driver and GPUs, and who works on them where that was asked."""

    fatal: str | None = None
    driver: str | None = None
    gpus: tuple[DeviceFacts | _Broken, ...] = ()
    work: dict[str, GpuWork] = Field(default_factory=dict)


class ChildReader:
    """Asks a child that speaks JSON lines. A hung or dead one is killed and started again after a while."""

    def __init__(self, argv: Sequence[str] = (), *, limit_s: float = READ_LIMIT_S, clock: Clock = boot_clock) -> None:
        """`argv` of the child; empty: the NVML reader of this package."""
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
            NoGpusError: NVML does not load. A child that hangs is no such proof: its GPUs are unknown for now.
        """
        answer = await self._ask(b"read\n", max(self._limit_s, _FIRST_LIMIT_S))
        if answer is not None and answer.fatal is not None:
            await self.aclose()
            raise NoGpusError(
                f"no GPUs can be read: NVML does not load ({answer.fatal}). Install the NVIDIA driver on this host,"
                " or play a simulated one with --simulate FILE"
            )

    async def read(self) -> tuple[DeviceFacts, ...] | None:
        """Every GPU now; None where the child hangs, is dead, or NVML fails as a whole."""
        reading = await self._read(b"read\n")
        return None if reading is None else reading.gpus

    async def sample(self) -> GpuReading | None:
        """As `read`, and who works on each."""
        return await self._read(b"sample\n")

    async def driver(self) -> str | None:
        """As of the last reading that succeeded."""
        return self._driver

    async def aclose(self) -> None:
        """Ends the child."""
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        # One in an uninterruptible driver call cannot be reaped now; the loop's child watcher does when it ends.
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

    def _facts(self, gpu: DeviceFacts | _Broken) -> DeviceFacts | None:
        """A GPU that errors is told as unhealthy with what was last known of it, not dropped."""
        if isinstance(gpu, DeviceFacts):
            self._known[gpu.index] = gpu
            return gpu
        known = self._known.get(gpu.index)
        if known is None:
            log.warning("a GPU cannot be read and was never known", index=gpu.index, error=gpu.error)
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
                await self.aclose()  # a late answer would be taken for the next one's
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
            raise EOFError("the child has ended")
        return _Answer.model_validate_json(line)

    async def _failed(self, error: Exception) -> None:
        delay_s = _BACKOFF_S[min(self._failures, len(_BACKOFF_S) - 1)]
        if self._failures == 0:
            log.warning("GPUs cannot be read", error=repr(error), again_in_s=delay_s)
        self._failures += 1
        self._not_before_s = self._clock() + delay_s
        await self.aclose()
