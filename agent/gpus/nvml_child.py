"""The child process that reads NVML: started, asked in JSON lines, killed."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from typing import Final

import msgspec

from agent.gpus.answers import ChildAnswer
from agent.program_input import give

_MAX_LINE_BYTES: Final = 4 * 2**20
_REAP_LIMIT_S: Final = 1.0


class NvmlChild:
    """One child. It is started by the first question."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = tuple(argv)
        self._process: asyncio.subprocess.Process | None = None

    async def ask(self, question: bytes) -> ChildAnswer:
        """Its answer. After an error or a cancellation only `kill` is left to do: an answer may be late.

        Raises:
            OSError: it cannot be started or written to.
            EOFError: it has ended.
            ValueError: its answer is not valid.
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
        """Ends it and what it started."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # In an uninterruptible driver call the child cannot be reaped now; the loop's child watcher reaps it later.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REAP_LIMIT_S):
                await process.wait()
