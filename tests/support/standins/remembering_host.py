"""A host without an agent that keeps what an agent keeps: terms, sessions, processes, receipts. It connects again."""

import asyncio
import time
from contextlib import suppress
from typing import Final

import aiohttp
import msgspec
from msgspec.structs import replace

from schemas.wire import (
    CONNECT_PATH,
    JOIN_PATH,
    SPOKEN,
    Command,
    CommandResult,
    Heartbeat,
    JoinRequest,
    JoinResponse,
    ProcessReport,
    ReportAck,
    StartOrder,
    Welcome,
    controller_message,
)
from support.standins.agent import gpu, hello, process

Key = tuple[str, int]  # instance and epoch
HEARTBEAT_S: Final = 3.0
AGAIN_S: Final = 0.3


class RememberingHost:
    """It runs what it is told to start, in name only, until it is told to stop it.

    Attributes:
        orders: of what runs.
        stopped: what ran and ended, since it was told to stop it.
    """

    def __init__(self, url: str, name: str, gpus: int) -> None:
        self.name = name
        self.orders: dict[Key, StartOrder] = {}
        self.stopped: dict[Key, StartOrder] = {}
        self.connected = asyncio.Event()
        self._url = url
        self._facts = tuple(replace(gpu(f"GPU-{name}-{n}"), index=n) for n in range(gpus))
        self._reports: dict[Key, ProcessReport] = {}
        self._epochs: dict[str, int] = {}
        self._seq = 0
        self._term = 0
        self._session = 0

    async def run(self, http: aiohttp.ClientSession, token: str) -> None:
        """Joins, and stays connected until it is cancelled."""
        request = msgspec.to_builtins(JoinRequest(token=token, name=self.name))
        async with http.post(self._url + JOIN_PATH, json=request) as answer:
            joined = msgspec.convert(await answer.json(), JoinResponse)
        headers = {"Authorization": f"Bearer {joined.credential}"}
        while True:
            with suppress(aiohttp.ClientError, ConnectionError, TimeoutError):
                async with http.ws_connect(self._url + CONNECT_PATH, headers=headers, protocols=SPOKEN.names()) as one:
                    await self._serve(one)
            self.connected.clear()
            await asyncio.sleep(AGAIN_S)

    async def _serve(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        first = hello(
            self._facts,
            boot_id=f"boot-{self.name}",
            processes=self._reports.values(),
            receipts=tuple(order.receipt for order in self.orders.values()),
            highest_term=self._term,
            highest_session=self._session,
            report_seq=self._seq,
            sent_s=time.monotonic(),
        )
        await socket.send_str(msgspec.json.encode(first).decode())
        beats = asyncio.create_task(self._beat(socket), name=f"{self.name} beats")
        try:
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.TEXT:
                    return
                await self._hear(socket, controller_message.decode(message.data))
        finally:
            beats.cancel()
            await asyncio.wait({beats})

    async def _beat(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await socket.send_str(
                msgspec.json.encode(Heartbeat(seq=1, sent_s=time.monotonic(), gpus=self._facts)).decode()
            )

    async def _hear(self, socket: aiohttp.ClientWebSocketResponse, message: object) -> None:
        match message:
            case Welcome():
                self._term, self._session = message.term, message.session
                self.connected.set()
            case ReportAck(seq=seq):
                gone = [key for key, one in self._reports.items() if one.state == "exited" and one.seq <= seq]
                for key in gone:
                    del self._reports[key]
            case Command():
                await self._obey(socket, message)

    async def _obey(self, socket: aiohttp.ClientWebSocketResponse, command: Command) -> None:
        key = (command.instance, command.epoch)
        if command.term < self._term:
            await self._answer(socket, command, "refused", "old_term")
            return
        if command.start is not None and command.epoch < self._epochs.get(command.instance, -1):
            await self._answer(socket, command, "refused", "old_epoch")
            return
        await self._answer(socket, command, "accepted")
        if command.start is not None and key not in self.orders:
            self._epochs[command.instance] = command.epoch
            self.orders[key] = command.start
            await self._report(socket, key, state="running", ready=True)
        elif command.stop is not None:
            if key in self.orders:
                self.stopped[key] = self.orders.pop(key)
            await self._report(socket, key, state="exited", reason="stopped", exit_code=0)

    async def _answer(
        self, socket: aiohttp.ClientWebSocketResponse, command: Command, outcome: str, code: str = ""
    ) -> None:
        answer = {"command_id": command.command_id, "outcome": outcome, "code": code}
        await socket.send_str(msgspec.json.encode(msgspec.convert(answer, CommandResult)).decode())

    async def _report(self, socket: aiohttp.ClientWebSocketResponse, key: Key, *, state: str, **fields: object) -> None:
        self._seq += 1
        self._reports[key] = process(key[0], state, epoch=key[1], seq=self._seq, **fields)
        await socket.send_str(msgspec.json.encode(self._reports[key]).decode())
