"""An agent whose every message a test sends by hand, over a real WebSocket."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import aiohttp
import msgspec

from schemas.wire import (
    Command,
    CommandResult,
    DeviceFacts,
    Heartbeat,
    Hello,
    HostFacts,
    Inventory,
    ProcessReport,
    Rejected,
    ReportAck,
    SamplesAck,
    Welcome,
    controller_message,
)

LIMIT_S = 15.0
GIB = 1024


def gpu(uuid_: str, gib: int = 80, **fields: Any) -> DeviceFacts:
    return DeviceFacts(uuid=uuid_, index=0, model="H100", memory_mib=gib * GIB, compute_capability="9.0", **fields)


def inventory(gpus: Sequence[DeviceFacts] | None = (), *, host_gib: int = 1024, **host: Any) -> Inventory:
    facts = {"os": "linux", "arch": "x86_64", "hostname": "h", "driver": "580.95", "cpu_milli": 64_000}
    shape = HostFacts(**{**facts, "memory_mib": host_gib * GIB, **host})
    return Inventory(host=shape, gpus=None if gpus is None else tuple(gpus))


def process(instance: str, state: str = "running", *, seq: int = 1, epoch: int = 1, **fields: Any) -> ProcessReport:
    given: dict[str, Any] = {"instance": instance, "epoch": epoch, "seq": seq, "state": state, "pid": 4711, **fields}
    return ProcessReport(**given)


def hello(
    gpus: Sequence[DeviceFacts] | None = (),
    *,
    processes: Iterable[ProcessReport] = (),
    boot_id: str = "boot-1",
    shape: Inventory | None = None,
    **fields: Any,
) -> Hello:
    given: dict[str, Any] = {
        "agent_version": "1",
        "boot_id": boot_id,
        "proxy_port": 7070,
        "inventory": shape or inventory(gpus),
        "processes": tuple(processes),
        **fields,
    }
    return Hello(**given)


class Connection:
    """One connection of an agent. It keeps what the hub sends: `commands`, `acks`, `sample_acks`, `rejected`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.welcome: Welcome | None = None
        self.commands: list[Command] = []
        self.acks: list[int] = []
        self.sample_acks: list[int] = []
        self.rejected: Rejected | None = None

    async def send(self, message: Any) -> None:
        await self.socket.send_str(message if isinstance(message, str) else msgspec.json.encode(message).decode())

    async def answer(self, command: Command, outcome: str = "accepted", **fields: Any) -> None:
        await self.send(CommandResult(command_id=command.command_id, outcome=outcome, **fields))

    async def beat(self, gpus: Sequence[DeviceFacts] | None = ()) -> None:
        await self.send(Heartbeat(seq=1, gpus=None if gpus is None else tuple(gpus)))

    async def next(self) -> Any:
        """The next message; None at the end."""
        async with asyncio.timeout(LIMIT_S):
            message = await self.socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            return None
        parsed = controller_message.decode(message.data)
        match parsed:
            case Command():
                self.commands.append(parsed)
            case ReportAck():
                self.acks.append(parsed.seq)
            case SamplesAck():
                self.sample_acks.append(parsed.seq)
            case Rejected():
                self.rejected = parsed
            case Welcome():
                self.welcome = parsed
        return parsed

    async def command(self) -> Command:
        """The next command; messages before it are kept."""
        while (message := await self.next()) is not None:
            if isinstance(message, Command):
                return message
        raise AssertionError(f"the connection ended before an order came: {self.rejected}")

    async def ack(self, seq: int) -> None:
        """Waits until reports up to `seq` are durable."""
        while not any(got >= seq for got in self.acks):
            assert await self.next() is not None, f"the connection ended before the ack: {self.rejected}"

    async def samples_ack(self, seq: int) -> None:
        """Waits until samples up to `seq` are durable."""
        while not any(got >= seq for got in self.sample_acks):
            assert await self.next() is not None, f"the connection ended before the ack: {self.rejected}"

    async def end(self) -> Rejected | None:
        """Waits for the end of the connection; returns the rejection, if any."""
        while await self.next() is not None:
            pass
        return self.rejected

    async def drop(self) -> None:
        """Cuts the socket, without a message."""
        transport = self.socket._writer.transport
        transport.abort()
        await self.socket.close()
