"""The double of an agent: it speaks the protocol over a real WebSocket, and only pretends to run processes."""

import asyncio
import itertools
import os
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from socket import SHUT_RDWR
from socket import socket as Socket  # noqa: N812 - a class
from typing import Any

import aiohttp
import msgspec

from agent.link.link import BACKOFF_FIRST_S, BACKOFF_MAX_S
from rig.agent_messages import GIB, hello, inventory, process
from schemas.wire import (
    CONNECT_PATH,
    JOIN_PATH,
    SPOKEN,
    Command,
    CommandResult,
    GpuSample,
    Heartbeat,
    Hello,
    ProcessReport,
    ProcessSample,
    Readings,
    Rejected,
    ReportAck,
    ReportedGpu,
    SamplePeriod,
    Samples,
    SamplesAck,
    StartOrder,
    Welcome,
    controller_message,
)

LIMIT_S = 15.0
_SPREAD = 0.618  # of a period, between one host's messages and the next host's
_MOST_USED_MIB = 40_000  # of a GPU

Key = tuple[str, int]  # instance and epoch


class AgentDouble:
    """One host, and its connection to a hub.

    A test sends each message itself (`dial`, `send`, `next`, …), or the double obeys by itself (`run`). Its processes,
    reports, term and session outlive a connection, like an agent's journal.

    Args:
        name: of the worker.
        url: of the controller.
        http: opens connections.
        credential: of the worker; empty: `join` gets one.
        gpus: their number.
        model: of each GPU.
        gib: memory of each GPU.
        beat_s: between two heartbeats.
        sample_s: between two samples; None: it sends none.
        again_s: between two attempts to connect; None: as agents wait.
        load: the mean utilization of an instance's GPUs in percent, unless `percent` has a value.

    Attributes:
        orders: of running processes.
        stopped: orders of processes that a command stopped.
        percent: readings of GPUs, by UUID.
        samples: it samples, if it has a period.
        keeps_samples: samples gather in `backlog` and are not sent.
        welcome, commands, acks, sample_acks, rejected: received from the hub.
    """

    def __init__(
        self,
        name: str = "gpu-1",
        *,
        url: str = "",
        http: aiohttp.ClientSession,
        credential: str = "",
        gpus: int = 0,
        model: str = "H100",
        gib: int = 80,
        beat_s: float = 5.0,
        sample_s: float | None = None,
        again_s: float | None = None,
        load: Callable[[str], float] = lambda _: 0.0,
    ) -> None:
        self.name = name
        self.uuids = tuple(f"GPU-{name}-{n}" for n in range(gpus))
        self.orders: dict[Key, StartOrder] = {}
        self.stopped: dict[Key, StartOrder] = {}
        self.percent: dict[str, float] = {}
        self.samples = True
        self.keeps_samples = False
        self.backlog: deque[SamplePeriod] = deque()
        self.connected = asyncio.Event()
        self.ended = asyncio.Event()  # the hub ended a connection
        self.welcome: Welcome | None = None
        self.commands: list[Command] = []
        self.acks: list[int] = []
        self.sample_acks: list[int] = []
        self.rejected: Rejected | None = None
        self.url = url
        self._http = http
        self._credential = credential
        self._model, self._mib = model, gib * GIB
        self._beat_s = beat_s
        self._sample_s = sample_s
        self._again_s = again_s
        self._load = load
        self._reports: dict[Key, ProcessReport] = {}
        self._epochs: dict[str, int] = {}
        self._seq = 0
        self._term = 0
        self._session = 0
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._sampled_s = 0.0

    # One message at a time

    async def join(self, token: str) -> None:
        body = {"token": token, "name": self.name, "agent_version": "0"}
        async with self._http.post(self.url + JOIN_PATH, json=body) as answer:
            if answer.status >= 300:
                raise RuntimeError(await answer.text())
            self._credential = (await answer.json())["credential"]

    async def dial(self, protocols: Sequence[str] = (), **headers: str) -> None:
        headers = {"Authorization": f"Bearer {self._credential}", **headers}
        where = self.url + CONNECT_PATH
        self._socket = await self._http.ws_connect(where, headers=headers, protocols=protocols, max_msg_size=2**24)

    @property
    def socket(self) -> aiohttp.ClientWebSocketResponse:
        assert self._socket is not None, "dial first"
        return self._socket

    async def send(self, message: Any) -> None:
        await self.socket.send_str(message if isinstance(message, str) else msgspec.json.encode(message).decode())

    async def answer(self, command: Command, outcome: Any = "accepted", **fields: Any) -> None:
        await self.send(CommandResult(command_id=command.command_id, outcome=outcome, **fields))

    async def beat(self, gpus: Sequence[ReportedGpu] | None = ()) -> None:
        await self.send(Heartbeat(seq=1, gpus=None if gpus is None else tuple(gpus)))

    async def next(self) -> Any:
        """The next message; None at the end."""
        async with asyncio.timeout(LIMIT_S):
            return await self._read()

    async def _read(self) -> Any:
        message = await self.socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            self.ended.set()
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
        """Waits for the connection's end; returns the rejection, if any."""
        while await self.next() is not None:
            pass
        return self.rejected

    def cut(self) -> None:
        """Breaks the connection, without a message."""
        with Socket(fileno=os.dup(self.socket.get_extra_info("socket").fileno())) as connection:
            connection.shutdown(SHUT_RDWR)

    async def drop(self) -> None:
        """Breaks the connection, and ends this side of it."""
        self.cut()
        await self.socket.close()

    # By itself

    async def run(self) -> None:
        """Stays connected and obeys, until it is cancelled."""
        wait_s = BACKOFF_FIRST_S
        while True:
            turn_s = 0.0
            try:
                await self._serve()
            except* (aiohttp.ClientError, ConnectionError, TimeoutError) as failures:
                wait_s = BACKOFF_FIRST_S if self.connected.is_set() else min(2 * wait_s, BACKOFF_MAX_S)
                turn_s = _turn_s(failures)
            self.connected.clear()
            at_most_s = self._again_s or (1.0 if turn_s else wait_s)
            await asyncio.sleep(turn_s + random.uniform(0, at_most_s))  # noqa: S311 - keeps no secret

    async def _serve(self) -> None:
        await self.dial(SPOKEN.names())
        try:
            await self.send(self.first())
            self._sampled_s = time.monotonic()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._obey_all(), name=f"{self.name} obeys")
                group.create_task(self._send_heartbeats(), name=f"{self.name} beats")
                if self._sample_s is not None:
                    group.create_task(self._send_samples(self._sample_s), name=f"{self.name} samples")
        finally:
            await self.socket.close()

    def first(self) -> Hello:
        """The hello, with the kept state."""
        return hello(
            shape=inventory(self.devices(), hostname=self.name, simulated=True),
            boot_id=f"boot-{self.name}",
            processes=self._reports.values(),
            receipts=tuple(order.receipt for order in self.orders.values()),
            highest_term=self._term,
            highest_session=self._session,
            report_seq=self._seq,
            sent_s=time.monotonic(),
        )

    def devices(self) -> list[ReportedGpu]:
        held = self._held()
        return [
            ReportedGpu(
                uuid=uuid, index=n, model=self._model, memory_mib=self._mib, compute_capability="9.0",
                utilization=self._percent(uuid, held), used_mib=self._used_mib(uuid),
            )
            for n, uuid in enumerate(self.uuids)
        ]  # fmt: skip

    def _held(self) -> dict[str, str]:
        """The instance on each GPU in use."""
        return {c.device: instance for (instance, _), order in self.orders.items() for c in order.claims}

    def _used_mib(self, uuid: str) -> int:
        """Only claimed memory is in use: nothing is placed on memory that no claim explains."""
        claimed = sum(c.memory_mib for order in self.orders.values() for c in order.claims if c.device == uuid)
        return min(claimed, _MOST_USED_MIB)

    def _percent(self, uuid: str, held: Mapping[str, str]) -> float:
        if uuid in self.percent:
            return self.percent[uuid]
        return self._load(held.get(uuid, ""))

    async def _obey_all(self) -> None:
        while (message := await self._read()) is not None:
            match message:
                case Welcome():
                    self._term, self._session = message.term, message.session
                    self.connected.set()
                case Rejected():
                    raise ConnectionError(message.message)
                case ReportAck(seq=seq):
                    gone = [
                        key for key, report in self._reports.items() if report.state == "exited" and report.seq <= seq
                    ]
                    for key in gone:
                        del self._reports[key]
                case Command():
                    await self._obey(message)
        raise ConnectionError(f"{self.name} lost its connection")

    async def _obey(self, command: Command) -> None:
        key = (command.instance, command.epoch)
        if command.term < self._term:
            await self.answer(command, "refused", code="old_term")
            return
        if command.start is not None and command.epoch < self._epochs.get(command.instance, -1):
            await self.answer(command, "refused", code="old_epoch")
            return
        await self.answer(command)
        if command.start is not None and key not in self.orders:
            self._epochs[command.instance] = command.epoch
            self.orders[key] = command.start
            await self._report(key, state="running", ready=True)
        elif command.stop is not None:
            if key in self.orders:
                self.stopped[key] = self.orders.pop(key)
            await self._report(key, state="exited", reason="stopped", exit_code=0)

    async def _report(self, key: Key, *, state: str, **fields: Any) -> None:
        self._seq += 1
        self._reports[key] = process(key[0], state, epoch=key[1], seq=self._seq, **fields)
        await self.send(self._reports[key])

    async def _send_heartbeats(self) -> None:
        async for seq in self._each(self._beat_s):
            await self.send(Heartbeat(seq=seq, sent_s=time.monotonic(), gpus=tuple(self.devices())))

    async def _send_samples(self, period_s: float) -> None:
        async for _ in self._each(period_s):
            if not self.samples:
                continue
            period = self._period(period_s)
            if self.keeps_samples:
                self.backlog.append(period)
            else:
                await self.send(Samples(sent_s=time.monotonic(), periods=(period,)))

    def _period(self, period_s: float) -> SamplePeriod:
        now_s, held, last_s = time.monotonic(), self._held(), self._sampled_s
        self._sampled_s = now_s
        percent = {uuid: self._percent(uuid, held) for uuid in self.uuids}
        gpus = tuple(GpuSample(uuid=uuid, mean=p, max=p, used_mib=self._used_mib(uuid)) for uuid, p in percent.items())
        processes = tuple(
            ProcessSample(
                instance=instance, epoch=epoch, requests=0,
                utilization={c.device: Readings(mean=percent[c.device], max=percent[c.device])
                             for c in order.claims if c.device in percent},
            )
            for (instance, epoch), order in self.orders.items()
        )  # fmt: skip
        return SamplePeriod(
            seq=int(now_s * 1000), sampled_s=now_s, period_s=period_s, read_s=now_s - last_s, gpus=gpus,
            processes=processes,
        )  # fmt: skip

    async def trickle(self, every_s: float, spoil: Callable[[SamplePeriod], SamplePeriod] | None = None) -> None:
        """Sends the backlog oldest first, each period after the previous ack; then it sends samples again.

        Args:
            every_s: between two periods.
            spoil: changes the first one.
        """
        while self.backlog:
            period = self.backlog.popleft()
            spoiled = period if spoil is None else spoil(period)
            spoil = None
            await self.send(Samples(sent_s=time.monotonic(), periods=(spoiled,)))
            async with asyncio.timeout(LIMIT_S):
                while not any(got >= period.seq for got in self.sample_acks):  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.02)
            await asyncio.sleep(every_s)
        self.keeps_samples = False

    async def _each(self, period_s: float) -> AsyncIterator[int]:
        """Yields a number once a period; hosts are spread evenly over it."""
        loop, number = asyncio.get_running_loop(), sum(self.name.encode())
        due = loop.time() + period_s * (number * _SPREAD % 1)
        for n in itertools.count(1):
            await asyncio.sleep(max(0.0, due - loop.time()))
            yield n
            due += period_s


def _turn_s(failures: BaseExceptionGroup[Exception]) -> float:
    """Seconds after which a busy controller requests a retry; 0 if it names none."""
    for error in failures.exceptions:
        if isinstance(error, BaseExceptionGroup):
            return _turn_s(error)
        if isinstance(error, aiohttp.WSServerHandshakeError):
            return float((error.headers or {}).get("Retry-After", 0))
    return 0.0
