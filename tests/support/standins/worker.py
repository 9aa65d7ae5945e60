"""A worker without an agent: a test sets what its GPUs read, and when its samples arrive. Over a real WebSocket."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec
from msgspec.structs import replace

from schemas.wire import (
    CONNECT_PATH,
    JOIN_PATH,
    SPOKEN,
    Command,
    GpuSample,
    Heartbeat,
    JoinRequest,
    JoinResponse,
    SamplePeriod,
    Samples,
    Welcome,
)
from support.builders.samples import own
from support.processes.cluster import Cluster
from support.standins.agent import Connection, gpu, hello, process

_HEARTBEAT_S = 2.0
_ACK_LIMIT_S = 20.0


class StandInWorker:
    """It runs what it is told to start, in name only. `percent`: what each GPU reads, by UUID.

    While `holding`, periods gather in `backlog`; `trickle` sends them slowly.
    """

    def __init__(self, cluster: Cluster, name: str, gpus: int, sample_s: float) -> None:
        self.cluster = cluster
        self.name = name
        self.uuids = tuple(f"GPU-{name}-{n}" for n in range(gpus))
        self.percent = dict.fromkeys(self.uuids, 0.0)
        self.holding = False
        self.backlog: deque[SamplePeriod] = deque()
        self.ended = asyncio.Event()  # the controller ended the connection
        self._sample_s = sample_s
        self._runs: dict[tuple[str, int], str] = {}  # the GPU of each (instance, epoch)
        self._seq = 0
        self._acked = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None
        self._connection: Connection | None = None

    async def connect(self) -> None:
        """Joins, and waits until the worker is ready."""
        token = (await self.cluster.post("/tokens", {}))["token"]
        self._session = aiohttp.ClientSession(self.cluster.url, timeout=aiohttp.ClientTimeout(sock_connect=10))
        request = msgspec.to_builtins(JoinRequest(token=token, name=self.name))
        async with self._session.post(JOIN_PATH, json=request) as answer:
            joined = msgspec.convert(await answer.json(), JoinResponse)
        headers = {"Authorization": f"Bearer {joined.credential}"}
        socket = await self._session.ws_connect(CONNECT_PATH, headers=headers, protocols=SPOKEN.names())
        self._connection = Connection(socket)
        await self._connection.send(hello(self._facts(), sent_s=time.monotonic()))
        assert isinstance(await self._connection.next(), Welcome)
        for work in (self._obey, self._beat, self._sample):
            self._tasks.add(asyncio.create_task(work(), name=f"{self.name} {work.__name__}"))
        await self.cluster.until(lambda: self.cluster.worker_is(self.name, "ready"), f"{self.name} is ready")

    async def aclose(self) -> None:
        """Ends the connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._connection is not None:
            await self._connection.socket.close()
        if self._session is not None:
            await self._session.close()

    async def trickle(self, every_s: float, spoil: Callable[[SamplePeriod], SamplePeriod] | None = None) -> None:
        """Sends the backlog oldest first, each period once the one before is acknowledged, then goes on as before.

        Args:
            every_s: between two periods.
            spoil: changes the first one.
        """
        while self.backlog:
            period = self.backlog.popleft()
            await self._send_period(period if spoil is None else spoil(period))
            spoil = None
            await self._is_acked(period.seq)
            await asyncio.sleep(every_s)
        self.holding = False

    async def _is_acked(self, seq: int) -> None:
        async with asyncio.timeout(_ACK_LIMIT_S), self._acked:
            await self._acked.wait_for(lambda: max(self.connection.sample_acks, default=0) >= seq)

    @property
    def connection(self) -> Connection:
        assert self._connection is not None, "connect first"
        return self._connection

    def _facts(self) -> list[Any]:
        return [replace(gpu(uuid), index=n) for n, uuid in enumerate(self.uuids)]

    async def _obey(self) -> None:
        while (message := await self._next()) is not None:
            async with self._acked:
                self._acked.notify_all()
            if isinstance(message, Command):
                await self.connection.answer(message)
                await self._carry_out(message)
        self.ended.set()

    async def _next(self) -> Any:
        """The next message; None at the connection's end. There may be none for long."""
        while True:
            try:
                return await self.connection.next()
            except TimeoutError:
                continue

    async def _carry_out(self, command: Command) -> None:
        key = (command.instance, command.epoch)
        if command.verb == "start":
            assert command.start is not None
            self._runs[key] = next(c.device for c in command.start.claims if c.device in self.uuids)
            await self._report(key, "starting")
            await self._report(key, "running", ready=True)
        elif self._runs.pop(key, None) is not None:
            await self._report(key, "exited", reason="stopped", exit_code=0)

    async def _report(self, key: tuple[str, int], state: str, **fields: Any) -> None:
        self._seq += 1
        await self.connection.send(process(key[0], state, epoch=key[1], seq=self._seq, **fields))

    async def _beat(self) -> None:
        while True:
            facts = tuple(replace(one, utilization=self.percent[one.uuid]) for one in self._facts())
            await self.connection.send(Heartbeat(seq=1, sent_s=time.monotonic(), gpus=facts))
            await asyncio.sleep(_HEARTBEAT_S)

    async def _sample(self) -> None:
        last_s = time.monotonic()
        while True:
            await asyncio.sleep(self._sample_s)
            now_s = time.monotonic()
            period = SamplePeriod(
                seq=int(now_s * 1000),
                sampled_s=now_s,
                period_s=self._sample_s,
                read_s=now_s - last_s,
                gpus=tuple(GpuSample(uuid=u, mean=p, max=p, used_mib=1) for u, p in self.percent.items()),
                processes=tuple(own(i, {u: self.percent[u]}, epoch=e) for (i, e), u in self._runs.items()),
            )
            last_s = now_s
            if self.holding:
                self.backlog.append(period)
            else:
                await self._send_period(period)

    async def _send_period(self, period: SamplePeriod) -> None:
        await self.connection.send(Samples(sent_s=time.monotonic(), periods=(period,)))
