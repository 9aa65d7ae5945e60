"""A load balancer in front of several controllers: it forwards TCP to the current target."""

import asyncio
from contextlib import suppress

_CHUNK = 2**16
_CLOSE_S = 5.0


class LoadBalancer:
    """Listens on loopback. New connections go to the port `target`."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.answers_to_lose = 0  # so many connections end with the answer's first byte, in place of it
        self._passable = asyncio.Event()
        self._passable.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._leading: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The address for agents and clients."""
        return f"http://127.0.0.1:{self.port}"

    async def open(self) -> "LoadBalancer":
        """Starts to listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def cut(self) -> None:
        """Holds all data back in both directions, without any error, as if packets were lost."""
        self._passable.clear()

    def mend(self) -> None:
        """Lets the data that was held back through, late, and all that follows."""
        self._passable.set()

    async def close(self) -> None:
        """Ends all connections."""
        self._passable.set()
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            async with asyncio.timeout(_CLOSE_S):
                await self._server.wait_closed()
                await asyncio.gather(*self._leading)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._lead(reader, writer), name="front-door")
        self._leading.add(task)
        task.add_done_callback(self._leading.discard)

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        await self._passable.wait()
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:  # nothing listens there: the client sees its connection end
            writer.transport.abort()
            self._writers.discard(writer)
            return
        self._writers.add(inner_writer)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pipe(reader, inner_writer))
                group.create_task(self._pipe(inner_reader, writer, answers=True))
        finally:
            for each in (writer, inner_writer):
                each.transport.abort()
                self._writers.discard(each)

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool = False) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self._passable.wait()
                if answers and self.answers_to_lose:
                    self.answers_to_lose -= 1
                    writer.transport.abort()
                    return
                writer.write(data)
                await writer.drain()
        with suppress(OSError):
            await self._passable.wait()
            writer.write_eof()
