"""Changes as fast as they go, and the memory of each daemon at moments in which nothing runs."""

import asyncio
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from support.processes.cluster import Cluster

HOSTS = ("h1", "h2", "h3")
GPUS = 4
AT_ONCE = 6  # deployments
LIMIT_S = 120.0
_POLL_S = 0.1
_QUIET_S = 0.5  # for what runs on for a moment after the last engine has ended


class ManyChanges:
    """Creates, scales, changes and deletes deployments of simulated engines; each asks for an answer, too."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.changes = 0
        self._names = (f"d-{n}" for n in itertools.count())

    async def start(self) -> None:
        """Starts controller, gateway and agents."""
        await self.cluster.start_controller()
        for name in HOSTS:
            await self.cluster.start_agent(name, gpus=GPUS)

    def pids(self) -> dict[str, int]:
        """Of the daemons, by name; of the gateway the process that serves."""
        named = {name: self.cluster.processes[name].pid for name in ("controller", *HOSTS)}
        return named | {"gateway": self.cluster.gateway().pid}

    async def run(self, until: int) -> None:
        """Makes changes until there were so many, or a few more; nothing runs afterwards."""
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._jobs(until))
        await asyncio.sleep(_QUIET_S)

    async def _jobs(self, until: int) -> None:
        while self.changes < until:
            await self._job(next(self._names))

    async def _job(self, name: str) -> None:
        """Six changes of one deployment, which starts four engines."""
        spec: dict[str, Any] = {"resources": {"gpus": 1, "gpu_memory": "1GiB"}, "drain_time": "0s"}
        spec |= {"env": {"JOB": name}, "labels": {"job": name}}  # as in use, where each has its own
        await self._change(name, spec)
        await self._answers(name)
        spec["replicas"] = 2
        await self._change(name, spec)
        spec |= {"replicas": 1, "priority": 60}
        await self._change(name, spec)
        spec["args"] = {"utilization": 50}  # other processes
        await self._change(name, spec)
        await self._call("POST", f"/deployments/{name}/stop")
        self.changes += 1
        await self._call("DELETE", f"/deployments/{name}")
        self.changes += 1
        await self._until(name, None)

    async def _change(self, name: str, spec: dict[str, Any]) -> None:
        await self._call("PUT", f"/deployments/{name}", {"engine": "simulated", **spec})
        self.changes += 1
        await self._until(name, "running")

    async def _call(self, method: str, path: str, body: Any = None) -> None:
        status, answer = await self.cluster.call(method, path, body)
        assert status < 300, answer

    async def _until(self, name: str, phase: str | None) -> None:
        """Waits for the phase of the newest generation; None: for its end."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                status, found = await self.cluster.call("GET", f"/deployments/{name}")
                if phase is None and status == 404:
                    return
                if status == 200 and found["status"]["phase"] == phase:
                    return
                await asyncio.sleep(_POLL_S)

    async def _answers(self, name: str) -> None:
        body = {"model": name, "prompt": "hello", "max_tokens": 2}
        async with self.cluster.session.post("/v1/completions", json=body, timeout=aiohttp.ClientTimeout(30)) as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()


def pss_kib(pids: Mapping[str, int]) -> dict[str, int]:
    """The proportional set size of each process."""
    found = {}
    for name, pid in pids.items():
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        found[name] = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return found
