"""Launches one engine through a parent of its own. The engine runs only after its pid is journalled."""

import asyncio
import errno
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from agent.errors import ProgramMissingError, SpawnError
from agent.host_inventory.installed_engines import PROGRAMS, lost_interpreter
from agent.processes.account import Account
from agent.processes.engine_parent import EngineParent, reserve_record
from agent.processes.privileges import without_privileges
from agent.processes.procfs import start_ticks
from agent.processes.spawn import open_log, unreachable
from schemas.engine_builds import INSTALL
from schemas.exit_causes import Cause

_PROGRAM: Final = Path(__file__).with_name("parent_main.py")
_LIMIT_S: Final = 30.0
_MOST_ANSWER_BYTES: Final = 65_536
_OF_THE_LOADER: Final = "LD_LIBRARY_PATH"  # this Python may need it


class EngineLaunch:
    """An async context: entering starts the parent and a process that waits for `go`; without `go` it ends.

    `env` is complete. The parent writes the engine's end into `record`. `account` None: the agent's; else the engine
    runs without capabilities.
    """

    pid: int  # of the engine, also of its session and group
    start_ticks: int
    parent: EngineParent  # the caller closes it

    def __init__(
        self,
        argv: list[str],
        env: Mapping[str, str],
        *,
        work: Path,
        log: Path,
        record: Path,
        account: Account | None = None,
    ) -> None:
        self._argv = argv
        self._env = env
        self._work = work
        self._log = log
        self._record = record
        self._account = account
        self._channel: socket.socket | None = None
        self.waits = True  # for `go`, so it ends with this context

    async def __aenter__(self) -> Self:
        try:
            self._channel, parent = self._start_parent()
        except (OSError, ValueError) as error:
            raise SpawnError(f"cannot start {self._argv[0]!r}: its parent: {error!r}") from error
        try:
            async with asyncio.timeout(_LIMIT_S):
                await asyncio.get_running_loop().sock_sendall(self._channel, self._order())
                kind, _, pid = (await self._answer()).partition(b" ")
        except OSError as error:  # TimeoutError is one
            self._give_up(parent)
            raise SpawnError(f"cannot start {self._argv[0]!r}: its parent: {error!r}") from error
        except BaseException:
            self._give_up(parent)
            raise
        ticks = start_ticks(int(pid)) if kind == b"pid" else None
        if ticks is None:
            self._give_up(parent)
            raise SpawnError(f"cannot start {self._argv[0]!r}: its parent has ended")
        self.pid, self.start_ticks, self.parent = int(pid), ticks, parent
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends a waiting process; a running engine continues."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    async def go(self) -> None:
        """Runs the engine. Raises ProgramMissingError, or another SpawnError that names the program or folder."""
        if self._channel is None:
            raise AssertionError("the launch is over")
        loop, self.waits = asyncio.get_running_loop(), False
        try:
            async with asyncio.timeout(_LIMIT_S):
                await loop.sock_sendall(self._channel, b"go %d\n" % self.start_ticks)
                answer = await self._answer()
        except OSError:  # TimeoutError is one
            return  # the parent is dead or hangs; the watched pid shows whether the engine runs
        if answer not in (b"", b"ok"):
            raise self._failure(answer)

    def _give_up(self, parent: EngineParent) -> None:
        self.close()
        parent.close()

    def _start_parent(self) -> tuple[socket.socket, EngineParent]:
        ours, theirs = socket.socketpair()
        record = -1
        try:
            ours.setblocking(False)
            record = reserve_record(self._record)
            pid = without_privileges(lambda: self._run_parent(theirs.fileno(), record))
            parent = EngineParent(pid, start_ticks(pid) or 0, os.pidfd_open(pid))
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            if record >= 0:
                os.close(record)
        return ours, parent

    def _run_parent(self, channel: int, record: int) -> int:
        with open_log(self._log, self._account) as output:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_PROGRAM), str(record)],
                env={name: value for name, value in os.environ.items() if name == _OF_THE_LOADER},
                cwd="/",
                stdin=channel,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(record,),
            )
        process.returncode = 0  # EngineParent reaps it: Popen's own reaping would free the pid too early
        return process.pid

    def _order(self) -> bytes:
        """Texts separated by NUL: account, folder, number of arguments, arguments, variables."""
        account = self._account
        ids = () if account is None else (account.uid, account.gid, *account.groups)
        texts = [" ".join(map(str, ids)), str(self._work), str(len(self._argv)), *self._argv]
        texts += [f"{name}={value}" for name, value in self._env.items()]
        order = b"\0".join(map(os.fsencode, texts))
        return b"%d\n%b" % (len(order), order)

    async def _answer(self) -> bytes:
        """The parent's next line, or its output before its end, without the line feed."""
        if self._channel is None:
            raise AssertionError("the launch is over")
        answer = b""
        while not answer.endswith(b"\n") and len(answer) < _MOST_ANSWER_BYTES:
            read = await asyncio.get_running_loop().sock_recv(self._channel, _MOST_ANSWER_BYTES)
            if not read:
                break
            answer += read
        return answer.removesuffix(b"\n")

    def _failure(self, answer: bytes) -> SpawnError:
        number, _, text = answer.decode(errors="replace").partition(" ")
        program = self._argv[0]
        lacks = number == str(errno.EACCES) and _is_nowhere(program, self._env)
        if text == program and (number == str(errno.ENOENT) or lacks):
            return ProgramMissingError(missing_program(program, self._env))
        error = text if number == "0" else str(OSError(int(number), os.strerror(int(number)), text or None))
        where = unreachable(program, self._env, self._account)
        return SpawnError(f"cannot start {program!r}: {error}{where}")


def _is_nowhere(program: str, env: Mapping[str, str]) -> bool:
    """Whether no folder of the search path has it. A search ends in EACCES if a folder is closed to all."""
    if "/" in program:
        return False
    folders = env.get("PATH", os.defpath).split(os.pathsep)
    return not any(os.path.exists(f"{folder}/{program}") for folder in folders)  # noqa: PTH110 - Path.exists raises


def missing_program(program: str, env: Mapping[str, str]) -> str:
    """The reason code, why the program cannot be run, and what installs it."""
    engine = next((name for name, known in PROGRAMS.items() if known == program), None)
    file = shutil.which(program, path=env.get("PATH"))
    interpreter = None if file is None else lost_interpreter(file)
    if file is not None and interpreter is not None:
        why = f"{file} names an interpreter that is not there: {interpreter}"
    else:
        why = f"{os.strerror(errno.ENOENT)}: {program!r}" + ("" if "/" in program else " on the search path of engines")
    how = INSTALL.get(engine or "")
    return f"{Cause.ENGINE_MISSING}: {why}" + (f"; install it: {how}" if how else "")
