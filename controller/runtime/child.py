"""The killable child: one function call in a process of its own that a cancel, a deadline or our death ends for good.

Starts and kills; decides nothing. There is no await between the start of the process and the `try` that ends it, so no
cancel, however early, leaves one behind.
"""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import structlog

from controller.runtime.child_pipes import ChildPipes

log = structlog.get_logger(__name__)

MAX_FRAME_BYTES = 16 * 1024 * 1024
_STDERR_TAIL_BYTES = 8 * 1024
# How long a child that has closed its answer pipe may take to exit by itself, so that its exit code can be told.
_EXIT_GRACE_S = 1.0
# SIGKILL takes milliseconds; what is still there after this hangs in the kernel, and we cannot but say so.
_GONE_LIMIT_S = 10.0
_POLL_FIRST_S = 0.0005
_POLL_LAST_S = 0.01

_PEEK = os.WEXITED | os.WNOHANG | os.WNOWAIT
_PACKAGES = str(Path(__file__).parents[2])
_CHILD_MAIN = str(Path(__file__).with_name("child_main.py"))
# All that a child inherits of our environment: where programs and certificates are, the language, the way out.
_INHERITED = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    *("HF_ENDPOINT", "HF_TOKEN", "HF_HUB_OFFLINE"),  # which model hub, and as whom
)
# Thread pools and per-thread arenas reserve address space by the gigabyte, which RLIMIT_AS counts.
_FRUGAL = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}


class ChildFailure(Exception):  # noqa: N818 - the base of three that are named by what happened
    """The child gave no result.

    Attributes:
        retryable: whether running it again may help.
    """

    retryable = True


class ChildTimeout(ChildFailure):
    """The child was not done by its deadline and was killed."""


class ChildCrashed(ChildFailure):
    """The child ended without an answer.

    Attributes:
        exit_code: as `subprocess` gives it: negative for a signal; None if it had to be killed by us.
        stderr_tail: the last kilobytes it wrote there.
    """

    def __init__(self, exit_code: int | None, stderr_tail: str) -> None:
        super().__init__(f"the child ended without an answer (exit code {exit_code}): {stderr_tail[-500:].strip()}")
        self.exit_code = exit_code
        self.stderr_tail = stderr_tail


class ChildError(ChildFailure):
    """The function in the child raised.

    Attributes:
        type: class name of what it raised.
        message: its text.
        retryable: the error's own attribute `retryable`, else whether it was a connection error or a timeout.
    """

    def __init__(self, type_name: str, message: str, *, retryable: bool) -> None:
        super().__init__(f"{type_name}: {message}")
        self.type = type_name
        self.message = message
        self.retryable = retryable


async def run_child(target: str, payload: Any, *, deadline_s: float, memory_bytes: int) -> Any:
    """Call `target` with `payload` in a fresh process and return its result.

    The process has its own session and group, dies with this one, starts no others, has `memory_bytes` of address space
    and a reduced environment. When this returns or raises, the process and its group are gone.

    Args:
        target: "module:function", a plain function of one JSON value that returns one.
        payload: a JSON value.
        deadline_s: seconds for all of it, the start included.
        memory_bytes: address space (RLIMIT_AS); an interpreter alone takes about 32 MiB.

    Raises:
        ValueError: `target` is not of the form "module:function", or the payload is too large or not JSON.
        ChildFailure: the process could not be started.
        ChildTimeout: not done within `deadline_s`.
        ChildCrashed: it ended without an answer, killed by the system for instance.
        ChildError: the function raised.
        asyncio.CancelledError: the caller was cancelled; raised once the process group is gone.
    """
    request = _encode_request(target, payload)
    process = _start(memory_bytes)
    pipes: ChildPipes | None = None
    try:
        pipes = ChildPipes(process, request, max_answer_bytes=MAX_FRAME_BYTES, stderr_tail_bytes=_STDERR_TAIL_BYTES)
        async with asyncio.timeout(deadline_s):
            answer = await pipes.answer()
        exited = await _has_exited(process)
    except TimeoutError:
        raise ChildTimeout(f"working it out took longer than {deadline_s:g} s") from None  # users read it
    finally:
        try:
            await _end(process)
        finally:
            if pipes is not None:
                pipes.close()
    return _decode_answer(answer, process.returncode if exited else None, pipes.stderr_tail)


def _encode_request(target: str, payload: Any) -> bytes:
    module, _, function = target.partition(":")
    if not module or not function:
        raise ValueError(f'target must be "module:function", got {target!r}')
    # An editable installation is found by an import hook, which the child lacks: the folder itself is named.
    path = [str(Path(entry).absolute()) for entry in (*sys.path, _PACKAGES)]
    try:
        request = orjson.dumps({"target": target, "payload": payload, "path": path})
    except TypeError as error:
        raise ValueError(f"payload of {target} must be a JSON value: {error}") from error
    if len(request) > MAX_FRAME_BYTES:
        raise ValueError(
            f"payload of {target} has {len(request)} bytes, at most {MAX_FRAME_BYTES} are taken: pass less"
        )
    return request


def _start(memory_bytes: int) -> subprocess.Popen[bytes]:
    # -I: nothing of the environment or the working folder gets in. -S: no site, a third of the start-up time; our own
    # sys.path travels in the request instead, so that it works from a source tree as from an installation.
    flags = ["-I", "-S", "-X", "utf8"]
    limits = [str(os.getpid()), str(memory_bytes), str(MAX_FRAME_BYTES)]
    try:
        return subprocess.Popen(
            [sys.executable, *flags, _CHILD_MAIN, *limits],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            cwd="/",
            env={name: os.environ[name] for name in _INHERITED if name in os.environ} | _FRUGAL,
        )
    except OSError as error:  # no memory, no descriptors, no process slots: all may pass
        raise ChildFailure(f"the child could not be started: {error}") from error


def _decode_answer(answer: bytes, exit_code: int | None, stderr_tail: str) -> Any:
    try:
        frame = orjson.loads(answer)
    except orjson.JSONDecodeError:
        raise ChildCrashed(exit_code, stderr_tail) from None
    match frame:
        case {"ok": result}:
            return result
        case {"error": {"type": type_name, "message": message, "retryable": retryable}}:
            raise ChildError(type_name, message, retryable=retryable)
        case _:
            raise ChildCrashed(exit_code, stderr_tail)


def _group_lives(pgid: int) -> bool:
    """Whether anybody in the group still runs: the dead whom their new parent, often slow, has yet to bury do not."""
    if not _signal_group(pgid, 0):
        return False
    # Reached only where the target started processes in spite of everything.
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = status.read_text(errors="replace").rpartition(")")[2].split()[:3]
        except OSError:  # ended while we looked
            continue
        if int(group) == pgid and state not in "ZX":
            return True
    return False


async def _has_exited(process: subprocess.Popen[bytes]) -> bool:
    """Wait a little for a child that has answered to exit by itself; it is not reaped, so that its group stays ours."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + _EXIT_GRACE_S
    while os.waitid(os.P_PID, process.pid, _PEEK) is None:  # noqa: ASYNC222 - it looks and does not wait
        if loop.time() > give_up:
            return False
        await asyncio.sleep(_POLL_FIRST_S)
    return True


async def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process's group and wait until it is empty and the process reaped.

    Cancels that arrive meanwhile wait, too: what would they free, if the process lived on? One is raised at the end.
    """
    # Not reaped yet, be it dead, so the group's number cannot belong to anybody else.
    _signal_group(process.pid, signal.SIGKILL)
    loop = asyncio.get_running_loop()
    give_up = loop.time() + _GONE_LIMIT_S
    pause_s = _POLL_FIRST_S
    cancelled: asyncio.CancelledError | None = None
    while process.poll() is None or _group_lives(process.pid):
        if loop.time() > give_up:
            log.error("child's process group survives SIGKILL", pgid=process.pid)
            break
        try:
            await asyncio.sleep(pause_s)
        except asyncio.CancelledError as error:
            cancelled = error
        pause_s = min(2 * pause_s, _POLL_LAST_S)
    if cancelled is not None:
        raise cancelled


def _signal_group(pgid: int, number: int) -> bool:
    """Send a signal to a process group; whether anybody is in it."""
    try:
        os.killpg(pgid, number)
    except ProcessLookupError:
        return False
    return True
