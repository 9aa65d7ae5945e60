"""A soak: load on models with faults at random, in the midst of a busy week, and an account of every request.

Engines write each request that they take to one file, which outlives them. What clients saw is compared with it.
"""

import asyncio
import contextlib
import math
import random
import re
import signal
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from support.processes.busy_week import BusyWeek
from support.processes.cluster import Cluster
from support.processes.gateways import Another
from support.processes.memory_watch import MemoryWatch
from support.processes.request_account import Account, Kind, Seen, read_account
from support.processes.simulated_engine import chat

_OPEN = re.compile(r"^(gpuward_\w*(?:in_flight|waiting)\w*(?:\{.*\})?) (\S+)$", re.MULTILINE)
CHAT = "/v1/chat/completions"
CLIENTS = 12
AUDIT_EVERY_S = 2.0
HOSTS = ("a", "b")
QUARANTINE_COUNTS_S = 60.0
MOST_RECONNECTS = 3  # of a host in that time; more than five put it in quarantine
GOES, STAYS = "gateway-that-goes", "gateway-that-stays"
REQUEST_LIMIT_S = 60.0
PAUSE_S = 0.2  # after an error, as clients have it
SLEEPY_SHARE = 0.15  # of the requests, while its clients are there
JOBS_SHARE = 0.15  # of the requests, for deployments of the week
SILENCE = {"GPUWARD_UNREACHABLE_AFTER_S": "8", "GPUWARD_LOST_AFTER_S": "20", "GPUWARD_SAMPLE_EVERY_S": "2"}
NAPS = {  # by the model's short and long nap: seconds without requests to it, and with them
    True: ((4.0, 7.0), (2.0, 4.0)),
    False: ((4.0, 40.0), (2.0, 30.0)),
}


Fault = Callable[[], Coroutine[Any, Any, None]]
NAP = {"target": 8, "window": "1s", "down_window": "1s", "idle_after": "2s"}
BACK_S = 5.0  # after the end of a gateway its address may refuse for so long
KINDS = (
    Kind("tokens=4 wait=0.1", 30),
    Kind("tokens=20 token_seconds=0.02", 30, stream=True),
    Kind("tokens=200 token_seconds=0.02", 15, stream=True, leaves=True),
    Kind("refuse=503", 5),
    Kind("refuse=500", 3),
    Kind("tokens=20 token_seconds=0.01 cut=5", 3, stream=True),
    Kind("tokens=20 token_seconds=0.01 die=5", 1, stream=True),
    Kind("die", 1),
)


@dataclass
class Door:
    """A gateway as clients reach it. `killed` and `stopped`: when it was last ended so, by the loop's clock."""

    url: str
    name: str
    killed: float = -math.inf
    stopped: float = -math.inf

    def was_ended_since(self, began: float) -> str:
        """How it was ended since then; empty: it was not."""
        if self.killed > began - BACK_S:
            return "killed"
        return "stopped" if self.stopped > began - BACK_S else ""


@dataclass
class Soak:
    """Load and faults on a cluster with three gateways: `soak` on two hosts, `sleepy` beside it, a week on two more.

    One gateway is left alone, so that its memory tells of the whole time.
    """

    cluster: Cluster
    journal: Path
    random: random.Random
    replicas: int = 4
    seen: list[Seen] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    _reconnects: list[tuple[float, str]] = field(default_factory=list)  # when, and of which host
    doors: list[Door] = field(default_factory=list)
    quick: bool = True
    week: BusyWeek = field(init=False)
    memory: MemoryWatch = field(init=False)
    _next_death: float = 0.0
    _naps: bool = True  # no client asks for `sleepy`
    _key: dict[str, Any] = field(default_factory=dict)
    _count: int = 0

    async def start(self) -> None:
        """Starts the cluster and its models."""
        await self.cluster.start_controller(GPUWARD_RESTART_BACKOFF_S="0.001", **SILENCE)
        for name in HOSTS:
            await self.cluster.start_agent(name, gpus=3)
        away_s = (2.0, 8.0) if self.quick else (5.0, 60.0)
        self.week = BusyWeek(self.cluster, self.journal, self.random, away_s)
        await self.week.start()
        journal = {"SIMULATED_ENGINE_JOURNAL": str(self.journal)}
        where = {"workers": list(HOSTS)}
        await self.cluster.apply("soak", replicas=self.replicas, resources={"gpus": 1}, placement=where, env=journal)
        await self.cluster.apply(
            "sleepy", replicas={"min": 0, "max": 1}, resources={"gpus": 1}, placement=where, env=journal, scaling=NAP
        )
        self.doors = [Door(self.cluster.url, "controller")]
        self.doors += [await self._another(GOES), await self._another(STAYS)]
        await self.all_run()
        self._key = await self._new_key()
        pids = {name: self.cluster.processes[name].pid for name in ("controller", STAYS)}
        (pids[STAYS],) = [child.pid for child in psutil.Process(pids[STAYS]).children()]  # which serves
        self.memory = MemoryWatch(pids, every_s=1.0 if self.quick else 5.0)

    async def all_run(self) -> None:
        """Waits until all replicas run. One whose engine died again and again waits for up to five minutes."""

        async def running() -> bool:
            return await self.cluster.phases("soak") == ["running"] * self.replicas

        await self.cluster.until(running, "all replicas run", 120 if self.quick else 330)

    async def _another(self, name: str) -> Door:
        """Starts one more gateway."""
        other = Another(self.cluster, name=name)
        try:
            await self.cluster.until(other.is_ready, f"{name} serves", 60)
        except AssertionError as error:
            async with self.cluster.session.get(other.url + "/readyz") as answer:
                raise AssertionError(f"{name} is not ready: {await answer.text()}") from error
        return Door(other.url, name)

    async def _new_key(self) -> dict[str, Any]:
        return dict(await self.cluster.post("/keys", {"role": "inference", "name": f"soak-{self._count}"}))

    async def run(self, seconds: float, fault_every_s: float) -> None:
        """Load and faults for so long; each request is then at its end."""
        until_s = asyncio.get_running_loop().time() + seconds
        # A kept connection that its server closes just then loses a request by HTTP's own design.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(self._client(session, until_s))
            group.create_task(self._faults(until_s, fault_every_s))
            group.create_task(self._nap(until_s))
            group.create_task(self.memory.run(until_s))
            group.create_task(self._audit(until_s))
            every_s = (1.5, 8.0) if self.quick else (3.0, 60.0)
            group.create_task(self.week.run(until_s, *every_s))

    async def _client(self, session: aiohttp.ClientSession, until_s: float) -> None:
        while asyncio.get_running_loop().time() < until_s:
            kind = self._next_kind()
            self._count += 1
            seen = await self._try(session, f"r{self._count}", kind)
            if seen is not None:
                self.seen.append(seen)
            if seen is None or seen.status != 200:
                await asyncio.sleep(PAUSE_S)

    def _next_kind(self) -> Kind:
        """Engines die now and then only: those that die again and again are left alone for minutes."""
        (kind,) = self.random.choices(KINDS, [kind.weight for kind in KINDS])
        if "die" not in kind.words:
            return kind
        now = asyncio.get_running_loop().time()
        if now < self._next_death:
            return KINDS[0]
        self._next_death = now + (5.0 if self.quick else 60.0)
        return kind

    async def _try(self, session: aiohttp.ClientSession, request_id: str, kind: Kind) -> Seen | None:
        """One request by one of the gateways; None: that took no connection."""
        door, began = self.random.choice(self.doors), asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                return await self._ask(session, door, request_id, kind)
        except aiohttp.ClientConnectorError as error:
            return None if door.was_ended_since(began) else Seen(request_id, kind, 0, "lost", repr(error))
        except (aiohttp.ClientError, TimeoutError) as error:
            ended = door.was_ended_since(began)
            return Seen(request_id, kind, 0, "reset" if ended else "lost", ended or repr(error))

    async def _ask(self, session: aiohttp.ClientSession, door: Door, request_id: str, kind: Kind) -> Seen:
        # An engine that dies again and again is left alone for long, and would hardly sleep and wake.
        model = "soak" if "die" in kind.words else self._next_model()
        body = chat(f"[simulate id={request_id} {kind.words}]", stream=kind.stream) | {"model": model}
        headers = {"Authorization": f"Bearer {self._key['key']}"}
        async with session.post(door.url + CHAT, json=body, headers=headers) as answer:
            if answer.status != 200:
                content = await answer.json()
                error = content["error"]
                told = error["code"] or error["type"]  # an engine's own has a type alone
                return Seen(request_id, kind, answer.status, "error" if told else "lost", str(told))
            if not kind.stream:
                content = await answer.json()
                return Seen(request_id, kind, 200, "whole" if content["choices"] else "lost")
            text = b""
            try:
                async for piece in answer.content.iter_any():
                    text += piece
                    if kind.leaves and text.count(b"\n\n") >= 2:
                        answer.close()
                        return Seen(request_id, kind, 200, "left")
            except aiohttp.ClientPayloadError:
                return Seen(request_id, kind, 200, "cut")
            return Seen(
                request_id, kind, 200, "whole" if text.endswith(b"data: [DONE]\n\n") else "lost", str(text[-99:])
            )

    def _next_model(self) -> str:
        by_chance = self.random.random()
        if by_chance < JOBS_SHARE and self.week.jobs:
            return self.random.choice(self.week.jobs)
        return "sleepy" if by_chance > 1 - SLEEPY_SHARE and not self._naps else "soak"

    async def _faults(self, until_s: float, every_s: float) -> None:
        loop = asyncio.get_running_loop()
        faults = (
            *(self._kill_engine, self._change_key, self._restart_agent),
            *(self._kill_gateway, self._stop_gateway),
        )
        while (rest := until_s - loop.time()) > 0:
            await asyncio.sleep(min(rest, self.random.uniform(0.5, 1.5) * every_s))
            fault = self._next_fault(faults)
            self.faults[fault.__name__.strip("_")] += 1
            await fault()

    def _next_fault(self, faults: Sequence[Fault]) -> Fault:
        """Each comes once, then any."""
        fresh = [fault for fault in faults if not self.faults[fault.__name__.strip("_")]]
        return self.random.choice(fresh or faults)

    async def _audit(self, until_s: float) -> None:
        """The ledger is clean in the midst of it all, too."""
        while (rest := until_s - asyncio.get_running_loop().time()) > 0:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):  # a gateway was ended just then
                status, result = await self.cluster.call("GET", "/audit")
                assert status != 200 or result["ok"], result["violations"]
            await asyncio.sleep(min(rest, AUDIT_EVERY_S))

    async def _nap(self, until_s: float) -> None:
        """The clients of `sleepy` go, so that it falls asleep, and come again."""
        without, with_ = NAPS[self.quick]
        while (rest := until_s - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(min(rest, self.random.uniform(*(without if self._naps else with_))))
            self._naps = not self._naps

    async def _kill_gateway(self) -> None:
        """That of the controller, as a crash; it comes back by itself."""
        if not all(map(self._may_reconnect, HOSTS)):
            return
        self._reconnects += [(asyncio.get_running_loop().time(), name) for name in HOSTS]  # they come by this gateway
        door, old = self.doors[0], self.cluster.gateway()
        door.killed = asyncio.get_running_loop().time()
        old.kill()

        async def is_back() -> bool:
            try:
                async with self.cluster.session.get("/readyz") as answer:
                    return answer.status == 200 and self.cluster.gateway().pid != old.pid
            except (aiohttp.ClientError, ValueError, psutil.Error):
                return False

        await self.cluster.until(is_back, "the gateway is back", 30)
        door.killed = asyncio.get_running_loop().time()

    async def _stop_gateway(self) -> None:
        """The other one, cleanly, and starts it again."""
        door = next(door for door in self.doors if door.name == GOES)
        door.stopped = asyncio.get_running_loop().time()
        process = self.cluster.processes.pop(GOES)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 30) == 0
        door.stopped = asyncio.get_running_loop().time()
        self.doors.remove(door)
        await asyncio.sleep(self.random.uniform(*((0.0, 2.0) if self.quick else (0.0, 20.0))))
        self.doors.append(await self._another(GOES))

    async def _kill_engine(self) -> None:
        if engines := list((await asyncio.to_thread(self.cluster.engines)).values()):
            with contextlib.suppress(psutil.NoSuchProcess):
                self.random.choice(engines).kill()

    async def _change_key(self) -> None:
        old, self._key = self._key, await self._new_key()
        status, _ = await self.cluster.call("DELETE", f"/keys/{old['id']}")
        assert status == 200

    async def _restart_agent(self) -> None:
        """As a crash or cleanly; its engines go on."""
        names = list(filter(self._may_reconnect, HOSTS))
        if not names:
            return
        name = self.random.choice(names)
        self._reconnects.append((asyncio.get_running_loop().time(), name))
        if self.random.random() < 0.5:
            self.cluster.kill(name)
        else:
            self.cluster.signal(name, signal.SIGTERM)
            await asyncio.to_thread(self.cluster.processes.pop(name).wait, 30)
        await self.cluster.start_agent(name, gpus=3)

    def _may_reconnect(self, name: str) -> bool:
        """Whether one more connection is far from what puts a host in quarantine."""
        since = asyncio.get_running_loop().time() - QUARANTINE_COUNTS_S
        return sum(host == name and at > since for at, host in self._reconnects) < MOST_RECONNECTS

    async def in_flight(self) -> dict[str, float]:
        """What is open: requests at engines, by instance, and the controller's and gateways' gauges, by name."""
        found: dict[str, float] = {}
        for door in self.doors:
            async with self.cluster.session.get(door.url + "/metrics") as answer:
                gauges = _OPEN.findall(await answer.text())
            assert gauges, "no gauge of what is in flight"
            found |= {f"{door.url} {name}": float(value) for name, value in gauges}
        async with aiohttp.ClientSession() as session:
            for instance, engine in self.cluster.engines().items():
                argv = engine.cmdline()
                port = argv[argv.index("--port") + 1]
                try:
                    async with session.get(f"http://127.0.0.1:{port}/simulated/counters") as answer:
                        counters = await answer.json()
                except aiohttp.ClientConnectorError:
                    continue  # it is starting, or has just ended: no request is open there
                found[instance] = counters["reading"] + counters["queued"] + counters["running"]
        return found

    def account(self) -> Account:
        """Clients' and engines' sides of all requests."""
        return read_account(self.seen, self.journal)
