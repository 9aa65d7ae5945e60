"""Starts PostgreSQL's programs through the launcher; finds and ends processes of an earlier run."""

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

from controller.store.embedded.accounts import Account
from controller.store.embedded.installation import EmbeddedPostgresError
from controller.store.embedded.layout import Layout

_LAUNCHER = Path(__file__).with_name("launch.py")
_LEFTOVER_STEPS: tuple[tuple[float, signal.Signals], ...] = ((1.0, signal.SIGQUIT), (6.0, signal.SIGKILL))
"""After that many seconds, the remaining processes get this signal. SIGQUIT is PostgreSQL's immediate shutdown."""
_LEFTOVER_DEADLINE_S = 10.0
_CHECK_LIMIT_S = 10.0


async def _spawn(
    account: Account,
    request: dict[str, Any],
    *,
    stdin: int | IO[bytes],
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
) -> asyncio.subprocess.Process:
    switch = None if account.is_ours else {"uid": account.uid, "gid": account.gid, "groups": account.groups}
    request |= {"parent": os.getpid(), "account": switch}
    # Not our own variables: a PGPORT or PGOPTIONS for another server must not reach this server.
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
    try:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(_LAUNCHER), json.dumps(request)),
            env=environment,
            cwd="/",
            start_new_session=True,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )
    except OSError as error:
        raise EmbeddedPostgresError(f"the interpreter {sys.executable} cannot be started: {error}") from error


async def start_server(account: Account, argv: list[str], output: IO[bytes]) -> asyncio.subprocess.Process:
    """Starts a long-lived program that gets SIGQUIT when the calling *thread* ends, however it ends.

    It has its own session, so that a Ctrl-C at our terminal does not reach it; the controller stops it in order.
    """
    request = {"argv": argv, "death_signal": signal.SIGQUIT.value}
    return await _spawn(account, request, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


async def run_program(account: Account, argv: list[str], *, stdin: bytes = b"", timeout_s: float) -> str:
    """Runs a program to its end and returns what it printed.

    Raises:
        EmbeddedPostgresError: it failed, or did not end within `timeout_s` seconds.
    """
    return await _run(account, {"argv": argv}, what=Path(argv[0]).name, stdin=stdin, timeout_s=timeout_s)


async def first_blocked(account: Account, paths: list[Path]) -> Path | None:
    """The first folder or file on the way to `paths` that the account cannot enter or read, or None.

    The check runs under the account, because mode bits are not sufficient (access lists, network mounts).
    """
    request = {"reach": [str(path) for path in paths]}
    answer = json.loads(await _run(account, request, what="the check of permissions", timeout_s=_CHECK_LIMIT_S))
    return None if answer is None else Path(answer)


async def _run(account: Account, request: dict[str, Any], *, what: str, stdin: bytes = b"", timeout_s: float) -> str:
    request |= {"death_signal": signal.SIGKILL.value}
    # A file in memory, not a pipe: a program that has ended without reading cannot be written to.
    with os.fdopen(os.memfd_create("stdin"), "w+b") as given:
        given.write(stdin)
        given.seek(0)
        process = await _spawn(account, request, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        async with asyncio.timeout(timeout_s):
            output, _ = await process.communicate()
    except BaseException as error:
        _kill_group(process)
        await process.wait()  # bounded: SIGKILL was sent
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


async def clear_leftovers(layout: Layout) -> None:
    """Waits until no PostgreSQL process of an earlier run uses the data folder, and ends those that remain.

    The caller holds the data folder's lock, so such processes have lost their controller. A server that is shutting
    down and the backends of a killed server usually end by themselves soon. A backend in the middle of a computation
    does not notice, and would keep every new server from starting.

    Raises:
        EmbeddedPostgresError: a process remains after 10 s.
    """
    begin = time.monotonic()
    steps = list(_LEFTOVER_STEPS)
    while leftovers := await asyncio.to_thread(_working_in, layout):
        elapsed_s = time.monotonic() - begin
        if elapsed_s > _LEFTOVER_DEADLINE_S:
            pids = ", ".join(str(process.pid) for process in leftovers)
            raise EmbeddedPostgresError(f"PostgreSQL processes of an earlier run do not end: {pids}; end them manually")
        if steps and elapsed_s > steps[0][0]:
            _, number = steps.pop(0)
            for process in leftovers:
                _signal(process, number)
        await asyncio.sleep(0.02)


def _working_in(layout: Layout) -> list[psutil.Process]:
    # By title and command line, which all accounts can read: without CAP_SYS_PTRACE, as in most containers, root cannot
    # read the working folder of another account's process.
    title = f"postgres: {layout.cluster_name}:"
    folders = {str(layout.cluster), str(layout.draft_cluster)}
    leftovers = []
    for process in psutil.process_iter(["name"]):
        if process.info["name"] != "postgres":
            continue
        try:
            argv = process.cmdline()
        except psutil.Error:  # ended in the meantime, or a zombie
            continue
        if " ".join(argv).startswith(title) or not folders.isdisjoint(argv):
            leftovers.append(process)
    return leftovers


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return
