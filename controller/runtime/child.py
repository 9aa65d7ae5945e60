"""The killable child: one function call in its own process, which ends at a cancel, a deadline or our own death.

There is no await between the start of the process and the `try` that ends it, so no cancel, however early, leaves a
process behind.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import orjson
import structlog

log = structlog.get_logger(__name__)
MAX_FRAME_BYTES = 16 * 1024 * 1024
_STDERR_TAIL_BYTES = 8 * 1024
# How long a child that has closed its answer pipe may take to exit by itself, so that its exit code is known.
_EXIT_GRACE_S = 1.0
# SIGKILL takes milliseconds. A process that is still there after this hangs in the kernel; that is only logged.
_GONE_LIMIT_S = 10.0
_POLL_FIRST_S = 0.0005
_POLL_LAST_S = 0.01
_PEEK = os.WEXITED | os.WNOHANG | os.WNOWAIT
_PACKAGES = str(Path(__file__).parents[2])
_CHILD_MAIN = str(Path(__file__).with_name("child_main.py"))
# The only variables that a child inherits: paths of programs and certificates, language, proxies.
_INHERITED = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    *("HF_ENDPOINT", "HF_TOKEN", "HF_HUB_OFFLINE"),  # the model hub, and its token
)
# Thread pools and per-thread arenas reserve address space by the gigabyte, which RLIMIT_AS counts.
_FRUGAL = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
_CHUNK_BYTES = 256 * 1024


class ChildFailure(Exception):  # noqa: N818 - base of three errors, named by the event
    """The child returned no result; `retryable`: a retry may help."""

    retryable = True


class ChildTimeout(ChildFailure):
    """The child was killed at its deadline."""


class ChildCrashed(ChildFailure):
    """The child exited without an answer. `exit_code`: negative for a signal; None if we killed it."""

    def __init__(self, exit_code: int | None, stderr_tail: str) -> None:
        super().__init__(f"the child exited without an answer (exit code {exit_code}): {stderr_tail[-500:].strip()}")
        self.exit_code = exit_code
        self.stderr_tail = stderr_tail


class ChildError(ChildFailure):
    """The function in the child raised an exception of the class `type`."""

    def __init__(self, type_name: str, message: str, *, retryable: bool) -> None:
        super().__init__(f"{type_name}: {message}")
        self.type = type_name
        self.message = message
        self.retryable = retryable


async def run_child(
    target: str,
    payload: Any,
    *,
    deadline_s: float,
    memory_bytes: int,
    on_start: Callable[[Callable[[], None]], None] = lambda _kill: None,
    on_working: Callable[[], None] = lambda: None,
) -> Any:
    """Calls `target` with `payload` in a fresh process and returns its result.

    The process has its own session and group, `memory_bytes` of address space and a reduced environment. It starts no
    other processes, and is killed when this process ends. When this returns or raises, its process group is gone.

    Args:
        target: "module:function", a plain function of one JSON value that returns one.
        payload: a JSON value.
        deadline_s: includes the start of the process.
        memory_bytes: address space (RLIMIT_AS); an interpreter alone takes about 32 MiB.
        on_start: gets a function that kills the child's group at once. A cancel of this call does so a little later.
        on_working: called once the child calls the loaded target, which a busy machine delays by seconds.

    Raises:
        ValueError: `target` is not of the form "module:function", or the payload is too large or not JSON.
        ChildFailure: the process could not be started.
        ChildTimeout: not done within `deadline_s`.
        ChildCrashed: it exited without an answer, such as when the system killed it.
        ChildError: the function raised.
        asyncio.CancelledError: the caller was cancelled; raised once the process group is gone.
    """
    request = _encode_request(target, payload)
    process = _start(memory_bytes)
    pipes: ChildPipes | None = None
    try:
        on_start(partial(_kill, process))
        pipes = ChildPipes(
            process,
            request,
            max_answer_bytes=MAX_FRAME_BYTES,
            stderr_tail_bytes=_STDERR_TAIL_BYTES,
            on_first=on_working,
        )
        async with asyncio.timeout(deadline_s):
            answer = await pipes.answer()
        exited = await _has_exited(process)
    except TimeoutError:
        raise ChildTimeout(f"the analysis took longer than {deadline_s:g} s") from None  # shown to users
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
        raise ValueError(f'target: must be "module:function", got {target!r}')
    # The child lacks the import hook that finds an editable installation, so the folder itself is named.
    path = [str(Path(entry).absolute()) for entry in (*sys.path, _PACKAGES)]
    try:
        request = orjson.dumps({"target": target, "payload": payload, "path": path})
    except TypeError as error:
        raise ValueError(f"payload of {target} must be a JSON value: {error}") from error
    if len(request) > MAX_FRAME_BYTES:
        raise ValueError(
            f"payload of {target} has {len(request)} bytes, at most {MAX_FRAME_BYTES} are accepted: pass less"
        )
    return request


def _start(memory_bytes: int) -> subprocess.Popen[bytes]:
    # -I: ignore the environment and the working folder. -S: no site, which is a third of the start-up time. The request
    # carries our sys.path instead, so that a source tree works like an installation.
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
    except OSError as error:  # no memory, descriptors or process slots: all may pass
        raise ChildFailure(f"the child could not be started: {error}") from error


def _decode_answer(answer: bytes, exit_code: int | None, stderr_tail: str) -> Any:
    try:
        frame = orjson.loads(answer)
    except orjson.JSONDecodeError:
        raise ChildCrashed(exit_code, stderr_tail) from None
    match frame:
        case {"ok": result}:
            return result
        case {"error": {"type": type_name, "message": message, "retryable": retryable, "detail": detail}}:
            if detail:  # callers must not see it
                log.warning("computation failed", answer=message, error=detail)
            raise ChildError(type_name, message, retryable=retryable)
        case _:
            raise ChildCrashed(exit_code, stderr_tail)


def _group_lives(pgid: int) -> bool:
    """Returns whether a process of the group still runs. Zombies that their new parent has yet to reap do not count."""
    if not _signal_group(pgid, 0):
        return False
    # Reached only if the target started processes in spite of the refusal.
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = status.read_text(errors="replace").rpartition(")")[2].split()[:3]
        except OSError:  # ended in the meantime
            continue
        if int(group) == pgid and state not in "ZX":
            return True
    return False


async def _has_exited(process: subprocess.Popen[bytes]) -> bool:
    """Waits briefly until a child that has answered exits by itself. It is not reaped, so its group stays ours."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + _EXIT_GRACE_S
    while os.waitid(os.P_PID, process.pid, _PEEK) is None:  # noqa: ASYNC222 - WNOHANG: it does not block
        if loop.time() > give_up:
            return False
        await asyncio.sleep(_POLL_FIRST_S)
    return True


async def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills the process's group and waits until it is empty and the process reaped.

    Cancels are deferred until then, since the process would outlive them.
    """
    # Not reaped yet, even if dead, so no other group can have this number.
    _signal_group(process.pid, signal.SIGKILL)
    loop = asyncio.get_running_loop()
    give_up = loop.time() + _GONE_LIMIT_S
    pause_s = _POLL_FIRST_S
    cancelled: asyncio.CancelledError | None = None
    while process.poll() is None or _group_lives(process.pid):
        if loop.time() > give_up:
            log.error("child process group survived SIGKILL", pgid=process.pid)
            break
        try:
            await asyncio.sleep(pause_s)
        except asyncio.CancelledError as error:
            cancelled = error
        pause_s = min(2 * pause_s, _POLL_LAST_S)
    if cancelled is not None:
        raise cancelled


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:  # not reaped yet, so no other group can have this number
        _signal_group(process.pid, signal.SIGKILL)


def _signal_group(pgid: int, number: int) -> bool:
    """Sends a signal to a process group; returns whether the group exists."""
    try:
        os.killpg(pgid, number)
    except ProcessLookupError:
        return False
    return True


class ChildPipes:
    """Sends `request` to the child; collects its answer and the end of its stderr. Does not handle the process.

    `process`: started with three unbuffered pipes. `answer` returns b"" in place of more than `max_answer_bytes`.
    `on_first`: called at the first bytes of its stdout.
    """

    # Not asyncio's subprocess streams, because the start-up of their child watcher can be cancelled half-way, and
    # because they differ between event loops.

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        request: bytes,
        *,
        max_answer_bytes: int,
        stderr_tail_bytes: int,
        on_first: Callable[[], None] = lambda: None,
    ) -> None:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise ValueError("process: must be started with stdin, stdout and stderr as pipes")
        self._loop = asyncio.get_running_loop()
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._unsent = memoryview(request)
        self._chunks: list[bytes] = []
        self._bytes_left = max_answer_bytes
        self._tail = bytearray()
        self._tail_bytes = stderr_tail_bytes
        self._on_first = on_first
        self._complete: asyncio.Future[bytes] = self._loop.create_future()
        for pipe in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(pipe.fileno(), False)
        self._loop.add_writer(self._stdin.fileno(), self._send)
        self._loop.add_reader(self._stdout.fileno(), self._receive)
        self._loop.add_reader(self._stderr.fileno(), self._listen)

    async def answer(self) -> bytes:
        """Waits until the child has closed its stdout, and returns its content. The caller sets the deadline."""
        return await self._complete

    @property
    def stderr_tail(self) -> str:
        return self._tail.decode(errors="replace")

    def close(self) -> None:
        """Closes the pipes after a last read of stderr; may be called twice."""
        if not self._stderr.closed:
            self._listen()
        self._close_stdin()
        self._close_reader(self._stdout)
        self._close_reader(self._stderr)
        self._complete.cancel()

    def _send(self) -> None:
        try:
            sent = os.write(self._stdin.fileno(), self._unsent[:_CHUNK_BYTES])
        except BlockingIOError:
            return
        except OSError:  # the child is gone, and its stdout ends
            self._close_stdin()
            return
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self._close_stdin()

    def _receive(self) -> None:
        chunk = self._read(self._stdout)
        if chunk is None:
            return
        if chunk and not self._chunks:
            self._on_first()
        self._chunks.append(chunk)
        self._bytes_left -= len(chunk)
        if chunk and self._bytes_left >= 0:
            return
        self._close_reader(self._stdout)
        if not self._complete.done():
            self._complete.set_result(b"".join(self._chunks) if self._bytes_left >= 0 else b"")

    def _listen(self) -> None:
        chunk = self._read(self._stderr)
        if chunk is None:
            return
        if not chunk:
            self._close_reader(self._stderr)
        self._tail += chunk
        del self._tail[: -self._tail_bytes]

    @staticmethod
    def _read(pipe: IO[bytes]) -> bytes | None:
        try:
            return os.read(pipe.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return None

    def _close_stdin(self) -> None:
        if not self._stdin.closed:
            self._loop.remove_writer(self._stdin.fileno())
            with suppress(BrokenPipeError):
                self._stdin.close()

    def _close_reader(self, pipe: IO[bytes]) -> None:
        if not pipe.closed:
            self._loop.remove_reader(pipe.fileno())
            pipe.close()
