"""Kills and stops processes of every kind by a plan that follows from a seed."""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import aiohttp
import psutil

from support.database.postgres import Holder
from support.processes.controllers import Controllers
from support.processes.recorded import Record, door_at

Kind = Literal["leader", "standby", "gateway", "agent", "engine", "database"]
How = Literal["kill", "stop"]
KINDS: tuple[Kind, ...] = ("leader", "standby", "gateway", "agent", "engine", "database")
HOWS: tuple[How, ...] = ("kill", "stop")
BACK_S = 60.0  # a process that was killed serves again within so long
AFTER_S = 2.0  # so long after it the address of a gateway may refuse, or break kept connections
_FENCED_S = 30.0  # longer than a silent worker's engines live


@dataclass(frozen=True)
class Fault:
    """One fault: when it comes, after the last one, and for how long the process is stopped, or away."""

    after_s: float
    kind: Kind
    how: How
    for_s: float
    choice: float  # from 0 to 1: which process of that kind


def plan(seed: int, seconds: float, every_s: float) -> list[Fault]:
    """The faults of so many seconds. Each kind comes once in each way, then any; now and then one lasts long."""
    chance = random.Random(seed)  # noqa: S311 - faults, not secrets
    fresh = [(kind, how) for kind in KINDS for how in HOWS]
    chance.shuffle(fresh)
    found, spent = [], 0.0
    while (after_s := chance.uniform(0.5, 1.5) * every_s) + spent < seconds:
        kind, how = fresh.pop() if fresh else (chance.choice(KINDS), chance.choice(HOWS))
        for_s = chance.uniform(0.2, every_s)
        if how == "stop" and kind == "agent" and every_s > 5 and chance.random() < 0.3:
            for_s = _FENCED_S
        found.append(Fault(after_s, kind, how, for_s, chance.random()))
        spent += after_s
    return found


class RandomFaults:
    """Applies a plan to a cluster.

    Args:
        cluster: with running controllers.
        agents: starts an agent by its name; the names of all.
        holder: of the database, whose server it starts again.
        database: the folder of the database's files, with `postmaster.pid`.
        record: notes each fault for the checker.
        env: of a controller that is started again.
    """

    def __init__(
        self,
        cluster: Controllers,
        agents: dict[str, Callable[[], Coroutine[Any, Any, None]]],
        holder: Holder,
        database: Path,
        record: Record,
        env: dict[str, str],
    ) -> None:
        self.cluster, self.agents, self.holder, self.database = cluster, agents, holder, database
        self.record, self.env = record, env
        self.done: Counter[str] = Counter()
        self._busy: set[str] = set()

    async def run(self, faults: list[Fault]) -> None:
        """Applies them. They overlap where one lasts longer than the next one's time."""
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await asyncio.sleep(fault.after_s)
                group.create_task(self._apply(fault))

    async def _apply(self, fault: Fault) -> None:
        name = await self._name_of(fault)
        if name is None or name in self._busy:  # it is under a fault already
            return
        self._busy.add(name)
        began = time.monotonic()
        try:
            with contextlib.suppress(psutil.NoSuchProcess):
                await (self._kill if fault.how == "kill" else self._stop)(fault, name)
                self.done[f"{fault.how} {fault.kind}"] += 1
        finally:
            self._busy.discard(name)
            door = door_at(name.removeprefix("gateway-").removeprefix("controller-"))
            until = time.monotonic() + AFTER_S
            self.record.note("fault", t=began, door=door, until=until, how=fault.how, kind=fault.kind, name=name)

    async def _name_of(self, fault: Fault) -> str | None:
        """Which process it meets; None: there is none just now."""
        controllers = [name for name in ("a", "b") if f"controller-{name}" in self.cluster.processes]
        if fault.kind in ("leader", "standby"):
            async with asyncio.timeout(30):
                leading = [name for name in controllers if await self.cluster.leads(name)]
            named = leading if fault.kind == "leader" else [name for name in controllers if name not in leading]
            return f"controller-{named[0]}" if named else None
        names = {
            "gateway": [f"gateway-{name}" for name in controllers],
            "agent": [name for name in self.agents if name in self.cluster.processes],
            "engine": sorted(await asyncio.to_thread(self.cluster.engines)),
            "database": ["database"],
        }[fault.kind]
        return names[int(fault.choice * len(names))] if names else None

    def _process(self, fault: Fault, name: str) -> psutil.Process:
        """
        Raises:
            psutil.NoSuchProcess: it has just ended.
        """
        if fault.kind == "database":
            try:
                return psutil.Process(int((self.database / "postmaster.pid").read_text().splitlines()[0]))
            except (OSError, ValueError, IndexError):
                raise psutil.NoSuchProcess(0) from None
        if fault.kind == "engine":
            if name not in (engines := self.cluster.engines()):
                raise psutil.NoSuchProcess(0)
            return engines[name]
        if fault.kind == "gateway":
            return self._gateway(name.removeprefix("gateway-"))
        return psutil.Process(self.cluster.processes[name].pid)

    def _gateway(self, controller: str) -> psutil.Process:
        """The process that serves."""
        children = psutil.Process(self.cluster.pid_of(controller)).children(recursive=True)
        parents = [one for one in children if "gateway" in one.cmdline()]
        serving = [child for parent in parents for child in parent.children()]
        if not serving:
            raise psutil.NoSuchProcess(0)
        return serving[0]

    async def _stop(self, fault: Fault, name: str) -> None:
        """SIGSTOP, and SIGCONT."""
        process = await asyncio.to_thread(self._process, fault, name)
        process.suspend()
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    async def _kill(self, fault: Fault, name: str) -> None:
        """SIGKILL. What nothing else starts again is started as a service manager would, after a while."""
        if fault.kind == "database" and fault.choice < 0.5:  # a process of a connection: the server begins anew
            postmaster = await asyncio.to_thread(self._process, fault, name)
            backends = [one for one in postmaster.children() if "idle" in " ".join(one.cmdline())]
            (backends or [postmaster])[0].kill()
        elif fault.kind in ("leader", "standby", "agent"):
            self.cluster.kill(name)
            await asyncio.sleep(fault.for_s)
            await self._start_again(name)
        else:
            (await asyncio.to_thread(self._process, fault, name)).kill()
            if fault.kind == "gateway":
                await self._serves(name.removeprefix("gateway-"))

    async def _start_again(self, name: str) -> None:
        if name in self.agents:
            await self.agents[name]()
            return
        async with asyncio.timeout(2 * BACK_S):
            while True:  # it may end at its start while the database is away
                try:
                    await self.cluster.start_named(name.removeprefix("controller-"), **self.env)
                except AssertionError:
                    if self.cluster.processes[name].poll() is None:
                        self.cluster.kill(name)
                    await asyncio.sleep(1)
                else:
                    return

    async def _serves(self, controller: str) -> None:
        async with asyncio.timeout(BACK_S), aiohttp.ClientSession() as session:
            while True:
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    url = f"http://127.0.0.1:{self.cluster.port_of(controller)}/readyz"
                    async with session.get(url, timeout=aiohttp.ClientTimeout(total=2)):
                        return
                await asyncio.sleep(0.1)
