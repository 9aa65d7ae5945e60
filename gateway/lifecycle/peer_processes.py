"""The processes of one gateway query each other's health and metrics, each on a Unix socket of its own.

A question is a line, the answer all that follows until the end. The sockets outlive a process that dies, so that a
question waits for its successor.
"""

import asyncio
import shutil
import socket
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ANSWER_S: Final = 3.0  # a process that died is replaced sooner
_BACKLOG: Final = 64
_MOST_BYTES: Final = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Sockets:
    """The listening sockets of all processes, in their order, in a folder that only this user may enter."""

    folder: Path
    bound: tuple[socket.socket, ...]

    def path(self, number: int) -> str:
        return str(self.folder / str(number))

    def remove(self) -> None:
        """Removes the folder; repeating it changes nothing."""
        shutil.rmtree(self.folder, ignore_errors=True)


def bind_sockets(count: int) -> Sockets:
    """Sockets for `count` processes.

    Raises:
        OSError: the folder for temporary files is not writable.
    """
    folder = Path(tempfile.mkdtemp(prefix="gpuward-gateway-"))
    bound = []
    for number in range(count):
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(str(folder / str(number)))
        listening.listen(_BACKLOG)
        bound.append(listening)
    return Sockets(folder, tuple(bound))


class PeerProcesses:
    """Answers the other processes, and queries them. `answers`: this process's answer to each question."""

    def __init__(self, number: int, sockets: Sockets, answers: Mapping[str, Callable[[], Awaitable[bytes]]]) -> None:
        self._number = number
        self._sockets = sockets
        self._answers = answers
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        bound = self._sockets.bound[self._number]
        self._server = await asyncio.start_unix_server(self._answer, sock=bound)

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def ask(self, question: str) -> dict[int, bytes | None]:
        """The answers of the other processes, by number; None without one within `ANSWER_S`."""
        others = [number for number in range(len(self._sockets.bound)) if number != self._number]
        answers = await asyncio.gather(*(self._ask(number, question) for number in others))
        return dict(zip(others, answers, strict=True))

    async def _ask(self, number: int, question: str) -> bytes | None:
        try:
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(self._sockets.path(number), limit=_MOST_BYTES)
                try:
                    writer.write(question.encode() + b"\n")
                    return await reader.read(-1) or None
                finally:
                    writer.transport.abort()
        except (OSError, TimeoutError):
            return None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, ValueError):
            async with asyncio.timeout(ANSWER_S):
                answer = self._answers.get((await reader.readline()).strip().decode("ascii"))
                if answer is not None:
                    writer.write(await answer())
                    await writer.drain()
        writer.close()
