"""The way to a database over TCP, which a test closes, freezes, slows down and opens again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

_CHUNK = 2**16
_CLOSE_S = 5.0


@dataclass
class _Asked:
    """When the statement that is not answered yet was sent."""

    at: float | None = None


class DatabaseGate:
    """Forwards loopback connections to the server of `dsn`, which may listen on a socket file alone."""

    def __init__(self, dsn: str) -> None:
        self._parts = urlsplit(dsn)
        self._server: asyncio.Server | None = None
        self._passable = asyncio.Event()
        self._passable.set()
        self._ways: set[asyncio.Task[None]] = set()
        self.port = 0
        self.slowness = 1.0  # each statement takes so many times as long
        self.accepted = 0

    @property
    def dsn(self) -> str:
        """The same database through this gate."""
        user = self._parts.netloc.rpartition("@")[0]
        return f"postgresql://{user}@127.0.0.1:{self.port}{self._parts.path}"

    def lead_to(self, dsn: str) -> None:
        """From now on new connections go to another server, to the same user and database."""
        self._parts = urlsplit(dsn)

    async def open(self) -> None:
        """Listens, at the same port as before, and lets everything pass."""
        self._passable.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    def freeze(self) -> None:
        """Accepts connections and lets nothing pass, as a server that hangs."""
        self._passable.clear()

    async def close(self) -> None:
        """Cuts all connections and refuses new ones, as a server that has ended."""
        self._passable.set()
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for way in tuple(self._ways):
            way.cancel()
        if self._ways:
            await asyncio.wait(self._ways, timeout=_CLOSE_S)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        way = asyncio.create_task(self._lead(reader, writer), name="database-gate")
        self._ways.add(way)
        way.add_done_callback(self._ways.discard)

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            await self._passable.wait()
            inner_reader, inner_writer = await self._connect()
            writers.append(inner_writer)
            async with asyncio.TaskGroup() as group:
                asked = _Asked()
                pipes = [
                    group.create_task(self._pipe(reader, inner_writer, asked)),
                    group.create_task(self._pipe(inner_reader, writer, asked, answers=True)),
                ]
                await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
                for pipe in pipes:
                    pipe.cancel()
        finally:
            for each in writers:
                each.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        query = dict(parse_qsl(self._parts.query))
        host = query.get("host", self._parts.hostname or "")
        port = int(query.get("port", self._parts.port or 5432))
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def _pipe(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: "_Asked", *, answers: bool = False
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self._passable.wait()
                now = asyncio.get_running_loop().time()
                if answers:
                    took_s, asked.at = now - (asked.at or now), None
                    if self.slowness > 1:
                        await asyncio.sleep((self.slowness - 1) * took_s)
                else:
                    asked.at = asked.at or now
                writer.write(data)
                await writer.drain()


@asynccontextmanager
async def gate_to(dsn: str) -> AsyncIterator[DatabaseGate]:
    """An open gate; closed at the end."""
    gate = DatabaseGate(dsn)
    await gate.open()
    try:
        yield gate
    finally:
        await gate.close()
