"""The three pipes to a child, read and written when the loop finds them ready. Bounded; does not handle the process.

asyncio's subprocess streams are not used: they need a child watcher whose start-up can be cancelled half-way, and they
differ between event loops. Readiness callbacks on a file descriptor are the same everywhere and take effect at once.
"""

import asyncio
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import IO

_CHUNK_BYTES = 256 * 1024


class ChildPipes:
    """Sends `request` to the child; collects its answer and the end of its stderr.

    Args:
        process: started with three pipes, unbuffered.
        request: all of its stdin.
        max_answer_bytes: an answer beyond it is dropped: `answer` returns b"".
        stderr_tail_bytes: how much of stderr's end is kept.
        on_first: called at the first bytes of its stdout.
    """

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
        """Wait until the child has closed its stdout; return what it wrote there. The caller sets the deadline."""
        return await self._complete

    @property
    def stderr_tail(self) -> str:
        """The last of what the child wrote to stderr."""
        return self._tail.decode(errors="replace")

    def close(self) -> None:
        """Close the pipes after a last read of stderr; may be called twice."""
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
