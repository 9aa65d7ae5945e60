"""Starts PostgreSQL's programs through the launcher, and finds and ends what an earlier run left behind."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

import psutil

from gpuward.controller.store.embedded.accounts import Account
from gpuward.controller.store.embedded.errors import EmbeddedPostgresError

_LAUNCHER = Path(__file__).with_name("launch.py")
_LEFTOVER_STEPS: tuple[tuple[float, signal.Signals], ...] = ((1.0, signal.SIGQUIT), (6.0, signal.SIGKILL))
"""After so many seconds, what is still there gets this signal. SIGQUIT is PostgreSQL's "stop as in a crash"."""
_LEFTOVER_DEADLINE_S = 10.0


def _launch_argv(account: Account, death_signal: signal.Signals, order: dict[str, Any]) -> list[str]:
    switch = None if account.is_ours else {"uid": account.uid, "gid": account.gid, "groups": account.groups}
    order = {"parent": os.getpid(), "account": switch, "death_signal": death_signal.value} | order
    return [sys.executable, "-I", "-S", str(_LAUNCHER), json.dumps(order)]


def _environment() -> dict[str, str]:
    # None of our own: a PGPORT or PGOPTIONS meant for some other server must not reach this one.
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


async def start_server(account: Account, argv: list[str], output: IO[bytes]) -> asyncio.subprocess.Process:
    """Starts a long-lived program that gets SIGQUIT when the calling *thread* ends, however it ends.

    It has a session of its own, so that a Ctrl-C at our terminal does not reach it before we have decided to stop it.
    """
    return await asyncio.create_subprocess_exec(
        *_launch_argv(account, signal.SIGQUIT, {"argv": argv}),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=_environment(),
        cwd="/",
        start_new_session=True,
    )


async def run_program(account: Account, argv: list[str], *, stdin: bytes = b"", timeout_s: float) -> str:
    """Runs a program to its end and returns what it printed.

    Raises:
        EmbeddedPostgresError: it failed, or did not end within `timeout_s` seconds.
    """
    return await _run(account, {"argv": argv}, what=Path(argv[0]).name, stdin=stdin, timeout_s=timeout_s)


async def first_blocked(account: Account, paths: list[Path], *, timeout_s: float = 10.0) -> Path | None:
    """The first folder or file on the way to `paths` that the account cannot enter or read, or None.

    The account itself is asked, because mode bits alone do not tell the whole truth (access lists, network mounts).
    """
    order = {"reach": [str(path) for path in paths]}
    answer = json.loads(await _run(account, order, what="the check of permissions", timeout_s=timeout_s))
    return None if answer is None else Path(answer)


async def _run(account: Account, order: dict[str, Any], *, what: str, stdin: bytes = b"", timeout_s: float) -> str:
    process = await asyncio.create_subprocess_exec(
        *_launch_argv(account, signal.SIGKILL, order),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=_environment(),
        cwd="/",
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(timeout_s):
            output, _ = await process.communicate(stdin)
    except BaseException as error:
        _kill_group(process)
        await process.wait()  # SIGKILL was sent: the kernel ends this wait
        if isinstance(error, TimeoutError):
            raise EmbeddedPostgresError(f"{what} did not end within {timeout_s:g} s") from error
        raise
    text = output.decode("utf-8", "replace").strip()
    if process.returncode != 0:
        raise EmbeddedPostgresError(f"{what} failed (exit {process.returncode}) as {account.name!r}: {text[-2000:]}")
    return text


def _kill_group(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


async def clear_leftovers(folders: list[Path]) -> None:
    """Waits until no PostgreSQL process of an earlier run works in the folders, and ends those that stay.

    The caller holds the data folder's lock, so whatever works there has lost its controller. Both a dying server and
    the backends of a killed one usually go by themselves within moments; a backend in the middle of a computation
    does not notice, and would keep every new server from starting.

    Raises:
        EmbeddedPostgresError: something is still there after 10 s.
    """
    begin = time.monotonic()
    steps = list(_LEFTOVER_STEPS)
    while leftovers := await asyncio.to_thread(_working_in, folders):
        elapsed_s = time.monotonic() - begin
        if elapsed_s > _LEFTOVER_DEADLINE_S:
            pids = ", ".join(str(process.pid) for process in leftovers)
            raise EmbeddedPostgresError(f"PostgreSQL processes of an earlier run do not end: {pids}; end them by hand")
        if steps and elapsed_s > steps[0][0]:
            _, number = steps.pop(0)
            for process in leftovers:
                _signal(process, number)
        await asyncio.sleep(0.02)


def _working_in(folders: list[Path]) -> list[psutil.Process]:
    # Every process of a server has its cluster as working folder; names alone would also match other servers.
    wanted = {str(folder) for folder in folders}
    found = []
    for process in psutil.process_iter(["name"]):
        if process.info["name"] != "postgres":
            continue
        try:
            if process.cwd() in wanted:
                found.append(process)
        except psutil.Error:  # gone, a zombie, or another user's: none of them works in a folder of ours
            continue
    return found


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return
