"""One child that fetches one model."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self

from agent.model_cache.beneath import OpenFolder
from agent.model_cache.cache_folder import CacheFolder
from agent.model_cache.fetch_account import fetch_account
from agent.model_cache.fetch_errors import FetchError
from agent.processes.account import Account
from agent.program_io import give
from agent.tasks import in_thread
from schemas.hub import is_commit

_MAX_LINE_BYTES: Final = 2**16
_SILENT_LIMIT_S: Final = 60.0
_REAP_LIMIT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class FetchPlace:
    """The destination of a fetch. Use `open_place`."""

    model: OpenFolder
    lock_fd: int  # of the file that is locked during the fetch
    account: Account | None  # None: the agent's own

    def close(self) -> None:
        """A child with the descriptor keeps the lock."""
        self.model.close()
        os.close(self.lock_fd)


def open_place(folder: CacheFolder, repo: str) -> FetchPlace:
    """Opens the place of a repository. Blocks. Raises OSError, also for a link."""
    with ExitStack() as stack:
        model = stack.enter_context(folder.open_model(repo))
        account = fetch_account(model)
        place = FetchPlace(model, folder.model_lock(repo).open(), account)
        stack.pop_all()
        return place


@asynccontextmanager
async def opened_place(folder: CacheFolder, repo: str) -> AsyncIterator[FetchPlace]:
    """As `open_place`, in a thread; a cancelled wait leaves nothing open. Raises FetchError."""
    try:
        place = await in_thread(partial(open_place, folder, repo), FetchPlace.close, f"open the folder of {repo}")
    except OSError as error:
        raise FetchError(f"hf:{repo} cannot be fetched into {folder.path}: {error}") from error
    try:
        yield place
    finally:
        place.close()


class FetchProcess:
    """Async context: leaving ends the child; fetched data stays.

    `task` (repository, revision, token, account) goes to the child's input, since arguments are public.
    """

    def __init__(self, task: Mapping[str, Any], env: Mapping[str, str], place: FetchPlace) -> None:
        account = place.account
        ids = None if account is None else (account.uid, account.gid)
        self._task = {**task, "account": ids, "folder_fd": place.model.fd, "lock_fd": place.lock_fd}
        self._env = env
        self._fds = (place.model.fd, place.lock_fd)
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "agent.model_cache.fetch_child"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=dict(self._env),
            start_new_session=True,
            pass_fds=self._fds,
            limit=_MAX_LINE_BYTES,
        )
        await self._write(json.dumps(self._task))
        return self

    async def __aexit__(self, *error: object) -> None:
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
        """Lets the child fetch its plan."""
        await self._write("go")

    async def messages(self) -> AsyncGenerator[dict[str, Any], None]:
        """Raises FetchError if the child ended or is silent."""
        process = self._process
        if process is None or process.stdout is None:
            raise AssertionError("it was not started")
        while True:
            try:
                async with asyncio.timeout(_SILENT_LIMIT_S):
                    line = await process.stdout.readline()
            except TimeoutError as error:
                raise FetchError(f"the hub gave no answer for {_SILENT_LIMIT_S:g} s") from error
            except ValueError as error:
                raise FetchError(f"the process that fetches models wrote more than {_MAX_LINE_BYTES} bytes") from error
            if not line:
                raise FetchError("the process that fetches models ended; see the agent's log")
            yield _parsed(line)

    async def _write(self, line: str) -> None:
        if self._process is None or self._process.stdin is None:
            raise AssertionError("it was not started")
        with contextlib.suppress(ConnectionError):  # `messages` notices its end
            give(self._process.stdin, line.encode() + b"\n")
            await self._process.stdin.drain()


def _parsed(line: bytes) -> dict[str, Any]:
    """Validates a message: the child reads a hub's answers, so it is not trusted. Raises FetchError."""
    try:
        message = json.loads(line)
        for name in message.keys() & {"waits", "bytes"}:
            message[name] = max(0, int(message[name]))
        if "plan" in message:
            plan = message["plan"]
            message["plan"] = {name: max(0, int(plan[name])) for name in ("missing", "there")} | _commit(plan)
        if "done" in message:
            message["done"] = {"public": message["done"]["public"] is True} | _commit(message["done"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FetchError(f"the process that fetches models wrote {line[:200]!r}") from error
    return dict(message)


def _commit(fields: Mapping[str, Any]) -> dict[str, str]:
    if not is_commit(fields["commit"]):
        raise ValueError(fields["commit"])
    return {"commit": fields["commit"]}
