"""Connections that arrive together are taken in few turns of the loop, however it is busy."""

import asyncio
import errno
import socket
from pathlib import Path

import pytest
import uvloop

from http1.protocol.listening import PlainAcceptor

ARRIVING = 300
TURNS = 30


def _turns(path: str, *, close: bool = False) -> tuple[int, int]:
    """How many turns of uvloop's loop it takes, and how many connections it took."""

    async def accept() -> tuple[int, int]:
        made: list[asyncio.BaseTransport] = []

        class Kept(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                made.append(transport)

        bound = socket.socket(socket.AF_UNIX)
        bound.bind(path)
        bound.listen(ARRIVING)
        acceptor = PlainAcceptor(Kept)
        acceptor.listen(bound)
        clients = [socket.socket(socket.AF_UNIX) for _ in range(ARRIVING)]
        for client in clients:
            client.connect(path)
        if close:
            acceptor.close()
        turns = 0
        while len(made) < ARRIVING and turns < TURNS:
            turns += 1
            await asyncio.sleep(0)
        acceptor.close()
        for transport in made:
            transport.abort()  # type: ignore[attr-defined]
        for client in clients:
            client.close()
        await asyncio.sleep(0)
        return turns, len(made)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(accept())


def test_many_are_taken_in_few_turns(tmp_path: Path) -> None:
    turns, taken = _turns(str(tmp_path / "a"))
    assert taken == ARRIVING
    assert turns < TURNS


def test_none_is_taken_after_the_end(tmp_path: Path) -> None:
    assert _turns(str(tmp_path / "b"), close=True)[1] == 0


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_protocol_that_fails_ends_its_connection_alone(loop, tmp_path: Path) -> None:
    path = str(tmp_path / "c")

    async def accept() -> tuple[bytes, bytes]:
        calls = iter([True, False])

        class Echo(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                transport.write(b"hi")  # type: ignore[attr-defined]
                transport.close()

        def made() -> asyncio.Protocol:
            if next(calls):
                raise ValueError("a defect")
            return Echo()

        bound = socket.socket(socket.AF_UNIX)
        bound.bind(path)
        bound.listen()
        acceptor = PlainAcceptor(made)
        acceptor.listen(bound)
        answers = []
        for _ in range(2):
            reader, writer = await asyncio.open_unix_connection(path)
            async with asyncio.timeout(5):
                answers.append(await reader.read())
            writer.close()
        acceptor.close()
        return answers[0], answers[1]

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(accept()) == (b"", b"hi")


@pytest.mark.parametrize("code", [errno.EPERM, errno.EPROTO, errno.ENETDOWN, errno.EMFILE])
async def test_a_port_goes_on_after_any_error_of_one_connection(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall refuses one connection, or the network was down as it came: the next one is served."""
    monkeypatch.setattr("http1.protocol.listening._PAUSE_S", 0.01)

    class Faulty(socket.socket):
        failed = False

        def accept(self) -> tuple[socket.socket, object]:
            if not self.failed:
                self.failed = True
                raise OSError(code, "once")
            return super().accept()

    taken = asyncio.Event()

    class Taken(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            taken.set()
            transport.close()

    path = str(tmp_path / "d")
    bound = Faulty(socket.AF_UNIX)
    bound.bind(path)
    bound.listen()
    acceptor = PlainAcceptor(Taken)
    acceptor.listen(bound)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        async with asyncio.timeout(5):
            await taken.wait()
    acceptor.close()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("turns", [0, 1, 2])
def test_an_abort_ends_what_has_just_arrived(loop, turns: int, tmp_path: Path) -> None:
    """A server that ends would otherwise leave a connection open that it does not know."""
    path = str(tmp_path / "e")

    async def accept() -> bytes:
        arrived = asyncio.Event()
        made: list[asyncio.BaseTransport] = []

        class Kept(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                made.append(transport)

        class Noting(PlainAcceptor):
            def _take(self, accepted: socket.socket, address: object) -> None:
                super()._take(accepted, address)
                arrived.set()

        bound = socket.socket(socket.AF_UNIX)
        bound.bind(path)
        bound.listen()
        acceptor = Noting(Kept)
        acceptor.listen(bound)
        reader, writer = await asyncio.open_unix_connection(path)
        await arrived.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        acceptor.close()
        acceptor.abort()
        await asyncio.sleep(0)
        for transport in made:  # as a server does with those that it knows
            transport.abort()  # type: ignore[attr-defined]
        async with asyncio.timeout(5):
            ended = await reader.read()
        writer.close()
        return ended

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(accept()) == b""
