"""One child that fetches one model: started, watched, killed."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, Self

from agent.program_input import give

_MAX_LINE_BYTES: Final = 2**16
_SILENT_LIMIT_S: Final = 60.0
_REAP_LIMIT_S: Final = 2.0


class FetchError(Exception):
    """A model is not on this host; the message says why. `final`: the hub was asked, and trying again does not help.

    `gone`: the hub knows the model and no longer has this commit of it.
    """

    def __init__(self, message: str, *, final: bool = False, gone: bool = False) -> None:
        super().__init__(message)
        self.final = final
        self.gone = gone


class FetchProcess:
    """Async context: leaving ends the child; what it has fetched stays.

    Args:
        task: repository, revision, token, folder; it is written to the child, since arguments are public.
        env: of the child.
    """

    def __init__(self, task: Mapping[str, str], env: Mapping[str, str]) -> None:
        self._task = task
        self._env = env
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        """Starts it."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "agent.model_cache.fetch_child"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=dict(self._env),
            start_new_session=True,
            limit=_MAX_LINE_BYTES,
        )
        await self._write(json.dumps(dict(self._task)))
        return self

    async def __aexit__(self, *error: object) -> None:
        """Ends it."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REAP_LIMIT_S):
                await process.wait()

    async def go(self) -> None:
        """Lets it fetch what it has planned."""
        await self._write("go")

    async def words(self) -> AsyncGenerator[dict[str, Any], None]:
        """What it says.

        Raises:
            FetchError: it ended, or says nothing.
        """
        process = self._process
        if process is None or process.stdout is None:
            raise AssertionError("it was not started")
        while True:
            try:
                async with asyncio.timeout(_SILENT_LIMIT_S):
                    line = await process.stdout.readline()
            except TimeoutError as error:
                raise FetchError(f"the hub gave no answer for {_SILENT_LIMIT_S:g} s") from error
            if not line:
                raise FetchError("the process that fetches models ended; see the agent's log")
            yield json.loads(line)

    async def _write(self, line: str) -> None:
        if self._process is None or self._process.stdin is None:
            raise AssertionError("it was not started")
        with contextlib.suppress(ConnectionError):  # its end is seen by what it says
            give(self._process.stdin, line.encode() + b"\n")
            await self._process.stdin.drain()
