"""What operators and hosts do beside the load of a soak, as in a busy week.

Deployments come, change and go, policies as well; whole hosts are lost and drained. Its deployments run on hosts of
their own, so that what the soak counts on is left alone. A call that a gateway's end cuts is made again, as clients do.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from support.processes.cluster import Cluster

HOSTS = ("busy-1", "busy-2")
GPUS = 6
MOST_JOBS = 6
POLICIES = ("week-1", "week-2")
_AGAIN_S = 0.2
_CALL_LIMIT_S = 60.0
_READY_LIMIT_S = 120.0
_GONE_LIMIT_S = 180.0
_FINE = frozenset({200, 201, 202, 204})

Deed = Callable[[], Awaitable[None]]


@dataclass
class BusyWeek:
    """Deeds at random on a cluster that runs.

    Attributes:
        journal: the file to which its engines write their requests.
        jobs: the names of its deployments that are there.
        deeds: how often each was done.
        away_s: the shortest and longest time for which a lost host is away.
    """

    cluster: Cluster
    journal: Path
    random: random.Random
    away_s: tuple[float, float]
    jobs: list[str] = field(default_factory=list)
    deeds: Counter[str] = field(default_factory=Counter)
    _policies: set[str] = field(default_factory=set)
    _count: int = 0

    async def start(self) -> None:
        """Starts its hosts."""
        for name in HOSTS:
            await self.cluster.start_agent(name, gpus=GPUS)

    async def run(self, until_s: float, deed_every_s: float, host_every_s: float) -> None:
        """Deeds until then, by the loop's clock; all hosts are back afterwards."""
        on_objects = (self._create, self._create, self._change, self._scale, self._delete)
        on_objects += (self._put_policy, self._delete_policy, self._stop_and_start)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._do(on_objects, until_s, deed_every_s), name="objects")
            group.create_task(self._do((self._lose_host, self._drain_host), until_s, host_every_s), name="hosts")

    async def _do(self, deeds: tuple[Deed, ...], until_s: float, every_s: float) -> None:
        """Each comes once, then any."""
        loop = asyncio.get_running_loop()
        while (rest := until_s - loop.time()) > 0:
            await asyncio.sleep(min(rest, self.random.uniform(0.5, 1.5) * every_s))
            fresh = [deed for deed in deeds if not self.deeds[_name(deed)]]
            deed = self.random.choice(fresh or deeds)
            self.deeds[_name(deed)] += 1
            await deed()

    async def end(self) -> None:
        """Deletes what it has made, and waits until nothing of it is left."""
        for name in list(self.jobs):
            await self._delete_job(name)
        for name in sorted(self._policies):
            await self._call("DELETE", f"/policies/{name}", fine=_FINE | {404})

        async def none_left() -> bool:
            instances = await self.cluster.instances()
            return not any(instance["spec"]["deployment"].startswith("job-") for instance in instances)

        await self.cluster.until(none_left, "no instance of the week is left", _GONE_LIMIT_S)

    # Objects

    async def _create(self) -> None:
        if len(self.jobs) >= MOST_JOBS:
            await self._delete()
        self._count += 1
        name = f"job-{self._count}"
        await self._apply(name)
        self.jobs.append(name)

    async def _change(self) -> None:
        """Another revision, or none where the same comes out."""
        if self.jobs:
            await self._apply(self.random.choice(self.jobs))

    async def _apply(self, name: str) -> None:
        spec: dict[str, Any] = {
            "engine": "simulated",
            "replicas": self.random.choice((1, 1, 2, {"min": 0, "max": 2})),
            "resources": {"gpus": self.random.choice((1, 1, 2))},
            "placement": {"workers": list(HOSTS)},
            "priority": self.random.choice((0, 50, 100)),
            "preempt": self.random.random() < 0.5,
            "update": self.random.choice(("recreate", "rolling")),
            "drain_time": "2s",
            "args": {"utilization": self.random.choice((0, 90))},
            "env": {"SIMULATED_ENGINE_JOURNAL": str(self.journal)},
        }
        if self._policies and self.random.random() < 0.7:
            spec["utilization_policy"] = self.random.choice(sorted(self._policies))
        await self._call("PUT", f"/deployments/{name}", spec)

    async def _scale(self) -> None:
        if self.jobs:
            body = {"replicas": self.random.choice((0, 1, 2))}
            await self._call("POST", f"/deployments/{self.random.choice(self.jobs)}/scale", body)

    async def _stop_and_start(self) -> None:
        if self.jobs:
            name = self.random.choice(self.jobs)
            await self._call("POST", f"/deployments/{name}/stop")
            await self._call("POST", f"/deployments/{name}/start")

    async def _delete(self) -> None:
        if self.jobs:
            await self._delete_job(self.random.choice(self.jobs))

    async def _delete_job(self, name: str) -> None:
        await self._call("DELETE", f"/deployments/{name}", fine=_FINE | {404})
        self.jobs.remove(name)

    async def _put_policy(self) -> None:
        name = self.random.choice(POLICIES)
        action = self.random.choice(("stop", "scale_down", "notify"))
        await self._call("PUT", f"/policies/{name}", {"min_gpu_utilization": 50, "time_window": 30, "action": action})
        self._policies.add(name)

    async def _delete_policy(self) -> None:
        """One that deployments name stays."""
        if self._policies:
            name = self.random.choice(sorted(self._policies))
            if await self._call("DELETE", f"/policies/{name}", fine=_FINE | {404, 409}) != 409:
                self._policies.discard(name)

    # Hosts

    async def _lose_host(self) -> None:
        """Agent and engines end at once, as with the host's power; later it is back."""
        name = self.random.choice(HOSTS)
        self.cluster.kill(name)
        await asyncio.to_thread(self._kill_engines, name)
        await asyncio.sleep(self.random.uniform(*self.away_s))
        await self.cluster.start_agent(name, gpus=GPUS, ready=False)
        await self._is_ready(name)

    def _kill_engines(self, host: str) -> None:
        folder = str(self.cluster.folder / f"agent-{host}")
        for engine in self.cluster.engines().values():
            with contextlib.suppress(psutil.NoSuchProcess):
                if engine.environ()["GPUWARD_AGENT_DIR"].startswith(folder):
                    engine.kill()

    async def _drain_host(self) -> None:
        name = self.random.choice(HOSTS)
        await self._call("POST", f"/workers/{name}/drain")
        await asyncio.sleep(self.random.uniform(*self.away_s))
        await self._call("POST", f"/workers/{name}/uncordon")
        await self._is_ready(name)

    async def _is_ready(self, name: str) -> None:
        async def ready() -> bool:
            try:
                return await self.cluster.worker_is(name, "ready")
            except (aiohttp.ClientError, TimeoutError, ValueError):  # a gateway ended just then
                return False

        await self.cluster.until(ready, f"{name} is ready", _READY_LIMIT_S)

    # Calls

    async def _call(self, method: str, path: str, body: Any = None, *, fine: frozenset[int] = _FINE) -> int:
        """The status of a call that comes through in the end; all of these may be made twice."""
        async with asyncio.timeout(_CALL_LIMIT_S):
            while True:
                try:
                    status, answer = await self.cluster.call(method, path, body)
                except (aiohttp.ClientError, ValueError):  # a gateway ended just then
                    status, answer = 503, ""
                if status != 503:
                    assert status in fine, (method, path, status, answer)
                    return status
                await asyncio.sleep(_AGAIN_S)


def _name(deed: Deed) -> str:
    return getattr(deed, "__name__", "").strip("_")
