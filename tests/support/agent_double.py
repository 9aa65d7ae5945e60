"""The agent's side of the protocol, played by hand over a real WebSocket, and the hub served on loopback."""

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from controller.hub.hub import Hub
from controller.runtime.clock import SystemClock
from controller.store.core.database import Database
from controller.store.telemetry.partitions import SampleRetention
from schemas.wire import (
    CONNECT_PATH,
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
    return ProcessReport.model_validate(
        {"instance": instance, "epoch": epoch, "seq": seq, "state": state, "pid": 4711, **fields}
    )


def hello(
    gpus: Sequence[DeviceFacts] | None = (),
    *,
    processes: Iterable[ProcessReport] = (),
    boot_id: str = "boot-1",
    shape: Inventory | None = None,
    **fields: Any,
) -> Hello:
    return Hello.model_validate(
        {
            "agent_version": "1",
            "boot_id": boot_id,
            "proxy_port": 7070,
            "inventory": shape or inventory(gpus),
            "processes": tuple(processes),
            **fields,
        }
    )


class Connection:
    """One connection of an agent. What the hub sends is kept in `commands`, `acks`, `sample_acks` and `rejected`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.welcome: Welcome | None = None
        self.commands: list[Command] = []
        self.acks: list[int] = []
        self.sample_acks: list[int] = []
        self.rejected: Rejected | None = None

    async def send(self, message: Any) -> None:
        await self.socket.send_str(message if isinstance(message, str) else message.model_dump_json())

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
        parsed = controller_message.validate_json(message.data)
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
        """The next order; everything before it is kept."""
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
        """Waits for the end of the connection; what was said at last."""
        while await self.next() is not None:
            pass
        return self.rejected

    async def drop(self) -> None:
        """Goes without a word: the socket is cut."""
        transport = self.socket._writer.transport
        transport.abort()
        await self.socket.close()


class HubUnderTest:
    """A hub on a loopback port, with a database."""

    def __init__(self, database: Database, hub: Hub, url: str, session: aiohttp.ClientSession) -> None:
        self.database = database
        self.hub = hub
        self.url = url
        self.session = session
        self.secrets: dict[str, str] = {}

    async def add_worker(self, name: str = "gpu-1") -> str:
        """A worker that has joined; its credential is `secret-NAME`."""
        id_ = uuid.uuid4()
        digest = hashlib.sha256(f"secret-{name}".encode()).digest()
        async with self.database.transaction() as c:
            await c.execute(
                "insert into workers (id, name, credential_hash, proxy_secret) values ($1, $2, $3, 'proxy')",
                id_,
                name,
                digest,
            )
        return str(id_)

    async def dial(self, name: str = "gpu-1") -> Connection:
        """An open socket, before any hello."""
        headers = {"Authorization": f"Bearer secret-{name}"}
        return Connection(await self.session.ws_connect(self.url + CONNECT_PATH, headers=headers))

    async def connect(self, name: str = "gpu-1", first: Hello | None = None) -> Connection:
        """A connection that was welcomed."""
        connection = await self.dial(name)
        await connection.send(first or hello())
        welcome = await connection.next()
        assert isinstance(welcome, Welcome), welcome
        return connection

    async def one(self, query: str, *args: Any) -> Any:
        async with self.database.connection() as c:
            return await c.fetchrow(query, *args)

    async def value(self, query: str, *args: Any) -> Any:
        async with self.database.connection() as c:
            return await c.fetchval(query, *args)

    async def execute(self, query: str, *args: Any) -> None:
        async with self.database.transaction() as c:
            await c.execute(query, *args)

    async def order(
        self, worker: str, instance: str, verb: str = "start", *, epoch: int = 1, payload: dict[str, Any] | None = None
    ) -> int:
        """Writes an order and wakes the hub."""
        default = start_payload() if verb == "start" else {"drain_time_s": 1}
        async with self.database.transaction() as c:
            id_ = await c.fetchval(
                """insert into commands (worker_id, instance_id, epoch, rank, verb, payload)
                   values ($1, $2, $3, 0, $4, $5) returning id""",
                uuid.UUID(worker),
                instance,
                epoch,
                verb,
                default if payload is None else payload,
            )
        self.hub.wake("command", worker)
        return int(id_)


def start_payload(**fields: Any) -> dict[str, Any]:
    base = {
        "deployment": "d",
        "deployment_uid": "u",
        "argv": ["true"],
        "env": {"A": "plain"},
        "claims": [],
        "needs_port": False,
        "probe": None,
        "start_timeout_s": 60,
        "drain_time_s": 5,
        "env_secrets": {},
    }
    return {**base, **fields}


async def eventually(check: Callable[[], Awaitable[Any]], what: str) -> Any:
    """Waits until the world is so; the state is asked, never guessed from time."""
    try:
        async with asyncio.timeout(LIMIT_S):
            while not (found := await check()):  # noqa: ASYNC110 - rows have no event to wait for
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"never came: {what}") from None
    return found


@asynccontextmanager
async def serving(database: Database) -> AsyncIterator[HubUnderTest]:
    """A running hub; ended with all its connections."""
    known: dict[str, str] = {}

    async def secrets(names: Iterable[str]) -> dict[str, str]:
        return {name: known[name] for name in names if name in known}

    hub = Hub(
        database,
        SystemClock(),
        instance_id="test",
        secrets=secrets,
        sample_s=2.5,
        keep=SampleRetention(samples_h=8, history_days=1),
    )
    app = web.Application()
    app.add_routes(hub.routes())
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=5.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    running = asyncio.create_task(hub.run(), name="hub")
    try:
        async with aiohttp.ClientSession() as session:
            under_test = HubUnderTest(database, hub, f"http://127.0.0.1:{port}", session)
            under_test.secrets = known
            yield under_test
            assert not running.done(), running
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    finally:
        running.cancel()
        await runner.cleanup()
