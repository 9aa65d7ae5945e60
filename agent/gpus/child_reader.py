"""Reads the GPUs through a child process, so that a hanging driver never blocks the agent."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

import msgspec
import structlog

from agent.clock import Clock, boot_clock
from agent.errors import INSTALL_EXTRA, NoGpusError
from agent.gpus.answers import NO_LIBRARY, ChildAnswer
from agent.gpus.known_gpus import KnownGpus
from agent.gpus.reader import GpuReader, GpuReading
from agent.gpus.verdicts import Verdicts
from agent.program_io import give
from schemas.wire import ReportedGpu

READ_LIMIT_S: Final = 2.0
_FIRST_LIMIT_S: Final = 15.0  # without persistence mode, the driver initializes every GPU at the first call
_BACKOFF_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
# After this time a new process may be able to read an unreadable GPU; then attempts become rarer.
_RENEW_AFTER_S: Final = (20.0, 60.0, 300.0)
_CODES: Final = {18: "driver_mismatch", NO_LIBRARY: "nvml_library_missing"}
_MOST_TEXT: Final = 300
_MAX_LINE_BYTES: Final = 4 * 2**20
_REAP_LIMIT_S: Final = 1.0
_EVERY_S: Final = 60.0
_MOST_CAUSES: Final = 1_000

log = structlog.get_logger()


class RareLog:
    """Logs one event and cause at most once a minute, with the number of omitted lines."""

    def __init__(self, log: Any, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._written: dict[Hashable, tuple[float, int]] = {}  # last line's time, and lines omitted since

    def warning(self, event: str, *, cause: Hashable, **context: Any) -> None:
        now_s, key = self._clock(), (event, cause)
        at_s, omitted = self._written.get(key, (float("-inf"), 0))
        if now_s - at_s < _EVERY_S:
            self._written[key] = (at_s, omitted + 1)
            return
        if len(self._written) >= _MOST_CAUSES:
            self._written.clear()
        self._written[key] = (now_s, 0)
        repeated = {"repeated": omitted} if omitted else {}
        self._log.warning(event, **context, **repeated)


class NvmlChild:
    """The child process that reads NVML. The first query starts it. It answers in lines of JSON."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = tuple(argv)
        self._process: asyncio.subprocess.Process | None = None

    async def query(self, question: bytes) -> ChildAnswer:
        """Raises OSError, EOFError or ValueError (an invalid answer).

        After an error or a cancellation the child must be killed: an answer may be late.
        """
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                limit=_MAX_LINE_BYTES,
            )
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("the child was started with pipes")
        give(self._process.stdin, question)
        await self._process.stdin.drain()
        line = await self._process.stdout.readline()
        if not line:
            raise EOFError("the process that reads NVML ended")
        return msgspec.json.decode(line, type=ChildAnswer)

    async def kill(self) -> None:
        """Kills the child's process group."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # Within an uninterruptible driver call it cannot be reaped now; the loop's child watcher reaps it later.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REAP_LIMIT_S):
                await process.wait()


class ChildReader(GpuReader):
    """Queries a child. A child that hangs, dies or has a broken library is replaced after a backoff.

    `argv` empty: this package's NVML reader. `limit_s` is for one reading; a child's first reading may take longer, in
    the background. Without `verdicts` condemned GPUs are forgotten with this reader. The rest: see `KnownGpus`.
    """

    def __init__(
        self,
        argv: Sequence[str] = (),
        *,
        limit_s: float = READ_LIMIT_S,
        clock: Clock = boot_clock,
        host: str = "local",
        host_memory_mib: int = 0,
        verdicts: Verdicts | None = None,
    ) -> None:
        self._child = NvmlChild(argv or (sys.executable, "-P", "-m", "agent.gpus.nvml", str(os.getpid())))
        self._limit_s = limit_s
        self._clock = clock
        self._verdicts = verdicts or Verdicts()
        self._known = KnownGpus(host, host_memory_mib, self._verdicts.load())
        self._querying = asyncio.Lock()
        self._first: asyncio.Task[ChildAnswer] | None = None  # a new child's first answer
        self._warm = False
        self._failures = 0
        self._not_before_s = float("-inf")
        self._renew_at_s: float | None = None
        self._renewed = 0
        self._driver: str | None = None
        self._error = ""
        self._rare = RareLog(log, clock)

    async def open(self) -> None:
        """Raises NoGpusError if NVML does not load. If the child hangs, the GPUs are only unknown for now."""
        answer = await self._query(b"read\n", max(self._limit_s, _FIRST_LIMIT_S))
        if answer is not None and answer.fatal is None:
            await self._take(answer)
        elif answer is not None:
            await self.aclose()
            fix = "Install the NVIDIA driver on this host (after an upgrade, reload it)"
            if answer.code == NO_LIBRARY:
                fix = f"{INSTALL_EXTRA[0].upper()}{INSTALL_EXTRA[1:]}"
            raise NoGpusError(
                f"no GPUs can be read: NVML does not load ({answer.fatal}). {fix}, or simulate a host with"
                " --simulate FILE"
            )

    async def read(self) -> tuple[ReportedGpu, ...] | None:
        reading = await self._read(b"read\n")
        return None if reading is None else reading.gpus

    async def sample(self) -> GpuReading | None:
        return await self._read(b"sample\n")

    async def driver(self) -> str | None:
        return self._driver

    def error(self) -> str:
        return self._error

    def dismiss(self, dismissed: Mapping[str, int]) -> None:
        if risen := self._verdicts.newly_dismissed(dismissed):
            self._known.dismiss(risen)
            self._verdicts.save(self._known.condemned())

    async def aclose(self) -> None:
        first, self._first = self._first, None
        if first is not None:
            first.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await first
        self._warm = False
        await self._child.kill()

    async def _read(self, question: bytes) -> GpuReading | None:
        answer = await self._query(question, self._limit_s)
        return None if answer is None or answer.fatal is not None else await self._take(answer)

    async def _take(self, answer: ChildAnswer) -> GpuReading:
        self._driver, now_s = answer.driver, self._clock()
        for event in answer.xids:
            self._rare.warning("Xid", cause=(event.uuid, event.xid), gpu=event.uuid, xid=event.xid, count=event.count)
        if answer.xids_dropped:
            self._rare.warning("Xids of too many kinds were dropped", cause="", count=answer.xids_dropped)
        gpus = self._known.take(answer, now_s)
        self._verdicts.save(self._known.condemned())
        for gpu in gpus:
            if (why := gpu.health_reason) and gpu.health != "ok":
                self._rare.warning("GPU not healthy", cause=(gpu.uuid, why), gpu=gpu.uuid, reason=why)
        await self._renew(answer, now_s)
        return GpuReading(gpus, answer.work)

    async def _renew(self, answer: ChildAnswer, now_s: float) -> None:
        """Replaces a child that has failed to read a GPU for long: a new process may succeed."""
        if not any(gpu.uuid is None for gpu in answer.gpus):
            self._renew_at_s, self._renewed = None, 0
        elif self._renew_at_s is None:
            self._renew_at_s = now_s + _RENEW_AFTER_S[min(self._renewed, len(_RENEW_AFTER_S) - 1)]
        elif now_s >= self._renew_at_s:
            self._renew_at_s, self._renewed = None, self._renewed + 1
            await self.aclose()

    async def _query(self, question: bytes, limit_s: float) -> ChildAnswer | None:
        async with self._querying:
            if self._clock() < self._not_before_s:
                return None
            try:
                answer = await self._answer(question, limit_s)
            except (TimeoutError, OSError, EOFError, ValueError) as error:
                await self._failed(_why(error, limit_s if self._warm else _FIRST_LIMIT_S), error)
                return None
            except asyncio.CancelledError:
                if self._warm:
                    await self.aclose()  # a late answer would be taken for the next query's
                raise
            if answer is None:
                self._error = self._error or "nvml_starting: the first reading is not done yet"
            elif answer.fatal is not None:
                code = _CODES.get(answer.code, "nvml_failed")
                fix = f"; {INSTALL_EXTRA}" if answer.code == NO_LIBRARY else ""
                await self._failed(f"{code}: {answer.fatal}{fix}", None)
            else:
                self._failures, self._error = 0, ""
            return answer

    async def _answer(self, question: bytes, limit_s: float) -> ChildAnswer | None:
        """None while a new child has not given its first answer."""
        if self._warm:
            async with asyncio.timeout(limit_s):
                return await self._child.query(question)
        if self._first is None:
            self._first = asyncio.create_task(self._query_first(question), name="first reading of GPUs")
        await asyncio.wait({self._first}, timeout=limit_s)
        if not self._first.done():
            return None
        first, self._first = self._first, None
        answer = first.result()
        self._warm = True
        return answer

    async def _query_first(self, question: bytes) -> ChildAnswer:
        async with asyncio.timeout(max(self._limit_s, _FIRST_LIMIT_S)):
            return await self._child.query(question)

    async def _failed(self, why: str, error: Exception | None) -> None:
        delay_s = _BACKOFF_S[min(self._failures, len(_BACKOFF_S) - 1)]
        self._error = why[:_MOST_TEXT]
        self._rare.warning("GPUs not read", cause=why, reason=why, error=repr(error), retry_in_s=delay_s)
        self._failures += 1
        self._not_before_s = self._clock() + delay_s
        await self.aclose()


def _why(error: Exception, limit_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"nvml_hang: a call to NVML did not return within {limit_s:g} s"
    return f"nvml_crashed: {str(error) or type(error).__name__}"
