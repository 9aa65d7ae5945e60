"""The controller's side of the agent protocol: an aiohttp server whose answers a test decides."""

import asyncio
import itertools
import os
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from schemas.wire import (
    CA_PATH,
    CONNECT_PATH,
    CREDENTIAL_HEADER,
    JOIN_PATH,
    SPOKEN,
    ClaimOrder,
    Command,
    CommandResult,
    Goodbye,
    Heartbeat,
    Hello,
    InventoryChanged,
    JoinRequest,
    JoinResponse,
    ProbeOrder,
    ProcessReport,
    Rejected,
    ReportAck,
    SamplePeriod,
    Samples,
    SamplesAck,
    SimulatedLoad,
    StartOrder,
    StopOrder,
    Welcome,
    agent_message,
)
from support.loopback import listening

TOKEN = "join-me"
CREDENTIAL = "worker-credential"
SECRET = "proxy-secret"
WAIT_S = 15.0


class ControllerDouble:
    """Serves one agent at a time and keeps all of its messages; `until` waits for what a test expects.

    `protocols` is what it takes at the upgrade: none, like a controller from before protocols were negotiated, or some.
    `takes_credentials`: that agents choose, unlike controllers of earlier versions; `chosen` has that of each join.
    `joined` sees each join and may answer it. `busy` has the `Retry-After` of each next connection that is answered by
    503, and `tried_at` when each connection came. `refusal` is sent before any hello. `headers` are those of its
    answers to /healthz.
    """

    def __init__(self) -> None:
        self.term = 1
        self.auto_ack = True
        self.credentials = {CREDENTIAL}
        self.reject: Rejected | None = None
        self.rejections = 0
        self.protocols = SPOKEN.names()
        self.proxy_secret = SECRET
        self.refusal: Rejected | None = None
        self.headers: dict[str, str] = {}
        self.tls: ssl.SSLContext | None = None
        self.authority = b""  # that it answers with, in PEM
        self.given: list[str] = []  # the credential of each connection
        self.busy: list[str] = []
        self.tried_at: list[float] = []
        self.raw: list[str] = []
        self.hellos: list[Hello] = []
        self.reports: list[ProcessReport] = []
        self.results: dict[int, CommandResult] = {}
        self.heartbeats: list[Heartbeat] = []
        self.inventories: list[InventoryChanged] = []
        self.goodbyes = 0
        self.joins: list[JoinRequest] = []
        self.takes_credentials = False
        self.chosen: list[str] = []
        self.joined: Callable[[web.Request], web.Response | None] | None = None
        self.url = ""
        self.heartbeat_s = 0.2
        self.sample_s = 10.0
        self.ack_samples = True
        self.samples: list[Samples] = []
        self._ws: web.WebSocketResponse | None = None
        self._news = asyncio.Condition()
        self._numbers = itertools.count(1)
        self._server = AsyncExitStack()
        self._port = 0

    async def start(self) -> None:
        """Listens; after a stop, on the same port."""
        app = web.Application()
        app.router.add_post(JOIN_PATH, self._join)
        app.router.add_get(CONNECT_PATH, self._connect)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get(CA_PATH, self._ca)
        served = listening(app, port=self._port, shutdown_s=0.1, cancel_handlers=False, tls=self.tls)
        address = await self._server.enter_async_context(served)
        self._port = int(address.rpartition(":")[2])
        self.url = f"{'http' if self.tls is None else 'https'}://{address}"

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.json_response({"status": "ok", "loop_lag_s": 0.0}, headers=self.headers)

    async def _ca(self, _request: web.Request) -> web.Response:
        return web.Response(body=self.authority) if self.authority else web.Response(status=404)

    async def stop(self) -> None:
        """Closes connection and port."""
        await self.drop()
        await self._server.aclose()

    async def drop(self) -> None:
        """Breaks the connection, if any."""
        if self._ws is not None:
            await self._ws.close()

    async def send(self, message: Any) -> None:
        assert self._ws is not None, "no agent is connected"
        await self._ws.send_str(message if isinstance(message, str) else msgspec.json.encode(message).decode())

    async def order(self, **fields: Any) -> CommandResult:
        """Sends a command, by default of the current term, and waits for its result."""
        command = Command(command_id=next(self._numbers), **{"term": self.term, **fields})
        await self.send(command)
        await self.until(lambda: command.command_id in self.results)
        return self.results[command.command_id]

    async def start_order(self, instance: str, order: StartOrder, *, epoch: int = 1, **fields: Any) -> CommandResult:
        return await self.order(instance=instance, epoch=epoch, verb="start", start=order, **fields)

    async def stop_order(self, instance: str, *, epoch: int = 1, drain_s: float = 2.0, **fields: Any) -> CommandResult:
        stop = StopOrder(drain_time_s=drain_s)
        return await self.order(instance=instance, epoch=epoch, verb="stop", stop=stop, **fields)

    def latest(self, instance: str, *, epoch: int = 1, rank: int = 0) -> ProcessReport | None:
        """The newest report of a process, those of hellos included."""
        reported = [*(process for hello in self.hellos for process in hello.processes), *self.reports]
        mine = [r for r in reported if (r.instance, r.epoch, r.rank) == (instance, epoch, rank)]
        return max(mine, key=lambda report: report.seq, default=None)

    async def state(self, instance: str, *states: str, epoch: int = 1) -> ProcessReport:
        """Waits until a process is in one of these states."""

        def there() -> bool:
            report = self.latest(instance, epoch=epoch)
            return report is not None and report.state in states

        await self.until(there)
        report = self.latest(instance, epoch=epoch)
        assert report is not None
        return report

    @property
    def periods(self) -> list[SamplePeriod]:
        """Every sampling period received, repeats included."""
        return [period for samples in self.samples for period in samples.periods]

    async def until(self, condition: Callable[[], bool], limit_s: float = WAIT_S) -> None:
        """Waits until a message of the agent makes the condition true."""
        async with asyncio.timeout(limit_s), self._news:
            await self._news.wait_for(condition)

    async def connected(self, count: int = 1) -> None:
        """Waits for the n-th hello."""
        await self.until(lambda: len(self.hellos) >= count)

    async def _join(self, request: web.Request) -> web.Response:
        wanted = msgspec.json.decode(await request.read(), type=JoinRequest)
        self.joins.append(wanted)
        self.chosen.append(request.headers.get(CREDENTIAL_HEADER, ""))
        if wanted.token != TOKEN:
            message = "the join token is unknown or used"
            return web.json_response({"error": {"code": "refused", "message": message, "details": {}}}, status=403)
        if self.joined is not None and (other := self.joined(request)) is not None:
            return other
        credential = self.chosen[-1] if self.takes_credentials else CREDENTIAL
        self.credentials.add(credential)
        answer = JoinResponse(worker=wanted.name, worker_uid="uid-1", credential=credential)
        return web.json_response(msgspec.to_builtins(answer))

    async def _connect(self, request: web.Request) -> web.StreamResponse:
        credential = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.given.append(credential)
        self.tried_at.append(asyncio.get_running_loop().time())
        if self.busy:
            return web.Response(status=503, headers={"Retry-After": self.busy.pop(0)})
        if credential not in self.credentials:
            return web.Response(status=401)
        ws = web.WebSocketResponse(protocols=self.protocols)
        await ws.prepare(request)
        self._ws = ws
        if self.refusal is not None:
            await ws.send_str(msgspec.json.encode(self.refusal).decode())
        try:
            async for frame in ws:
                if frame.type is WSMsgType.TEXT:
                    self.raw.append(frame.data)
                    await self._take(ws, agent_message.decode(frame.data))
        finally:
            if self._ws is ws:
                self._ws = None
        return ws

    async def _sampled(self, ws: web.WebSocketResponse, samples: Samples) -> None:
        self.samples.append(samples)
        if self.ack_samples:
            await ws.send_str(msgspec.json.encode(SamplesAck(seq=samples.periods[-1].seq)).decode())

    async def _welcome(self, ws: web.WebSocketResponse, hello: Hello) -> None:
        welcome = Welcome(
            worker="sim-1",
            session=1,
            term=self.term,
            heartbeat_s=self.heartbeat_s,
            sample_s=self.sample_s,
            proxy_secret=self.proxy_secret,
        )
        await ws.send_str(msgspec.json.encode(welcome).decode())
        self.hellos.append(hello)
        if hello.processes and self.auto_ack:
            await ws.send_str(msgspec.json.encode(ReportAck(seq=max(p.seq for p in hello.processes))).decode())

    async def _take(self, ws: web.WebSocketResponse, message: Any) -> None:
        match message:
            case Hello():
                if self.reject is not None:
                    await ws.send_str(msgspec.json.encode(self.reject).decode())
                    self.rejections += 1
                else:
                    await self._welcome(ws, message)
            case ProcessReport():
                self.reports.append(message)
                if self.auto_ack:
                    await ws.send_str(msgspec.json.encode(ReportAck(seq=message.seq)).decode())
            case Samples():
                await self._sampled(ws, message)
            case CommandResult():
                self.results[message.command_id] = message
            case Heartbeat():
                self.heartbeats.append(message)
            case InventoryChanged():
                self.inventories.append(message)
            case Goodbye():
                self.goodbyes += 1
        async with self._news:
            self._news.notify_all()


@asynccontextmanager
async def controller_double() -> AsyncIterator[ControllerDouble]:
    """A running double."""
    double = ControllerDouble()
    await double.start()
    try:
        yield double
    finally:
        await double.stop()


def start_order(
    *argv: str,
    gpus: tuple[str, ...] = (),
    memory_mib: int = 1024,
    exclusive: bool = False,
    port: bool = False,
    probe: ProbeOrder | None = None,
    **fields: Any,
) -> StartOrder:
    """A start order with short times."""
    times = {"start_timeout_s": 20.0, "drain_time_s": 2.0}
    claims = tuple(ClaimOrder(device=gpu, memory_mib=memory_mib, exclusive=exclusive) for gpu in gpus)
    return StartOrder(
        deployment="demo",
        deployment_uid="demo-uid",
        argv=argv,
        claims=claims,
        needs_port=port,
        probe=probe,
        **{**times, **fields},
    )


def rig_order(*extra: str, **fields: Any) -> StartOrder:
    """The rig's engine, with its probe."""
    env = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return simulated_order(*extra, program=("{python}", "-P", "-m", "rig.engine"), env=env, **fields)


def simulated_order(
    *extra: str, program: tuple[str, ...] = ("{simulated_engine}",), utilization: float = 50.0, **fields: Any
) -> StartOrder:
    """The simulated engine, with its probe."""
    argv = (*program, "--port", "{port}", "--model", "demo", *extra)
    probe = ProbeOrder(path="/health", period_s=0.2, timeout_s=1.0, failures=2)
    load = SimulatedLoad(utilization=((0.0, utilization),))
    return start_order(*argv, port=True, probe=probe, simulated_load=load, **fields)
