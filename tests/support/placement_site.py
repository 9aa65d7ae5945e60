"""A controller process, and simulated hosts that join and leave as each case needs them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agent.daemon import run_agent
from agent.gpus.simulated import gpu_uuid
from agent.settings import AgentSettings
from support.cluster import Cluster, Json
from support.placement_tables import host_of

_LIMIT_S = 30.0


@dataclass
class Agent:
    """A real agent in the test's own loop."""

    task: asyncio.Task[int]
    stop: asyncio.Event


class Site:
    """A controller for all cases, and the hosts of the current one."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._agents: dict[str, Agent] = {}
        self._joined = 0

    async def host(self, name: str, **more: Any) -> None:
        """Lets the host of that name join; `more` changes its description."""
        host = host_of(name, **more)
        self._joined += 1
        folder = self.cluster.folder / f"agent-{self._joined}"
        folder.mkdir()
        file = folder / "hosts.yaml"
        file.write_text(yaml.safe_dump({"workers": [host]}))
        stop = asyncio.Event()
        settings = AgentSettings(
            controller_url=self.cluster.url,
            join_token=(await self.cluster.post("/tokens", {}))["token"],
            name=name,
            simulate=file,
            data_dir=folder / "data",
            proxy_host="127.0.0.1",
        )
        task = asyncio.create_task(run_agent(settings, stop=stop), name=name)
        self._agents[name] = Agent(task, stop)

        async def settled() -> bool:
            return task.done() or await self.cluster.worker_is(name, "ready")

        await self.cluster.until(settled, f"{name} is ready")
        assert not task.done(), "the agent ended; its log says why"

    async def hosts(self, *names: str) -> None:
        """Lets several hosts join at once."""
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(self.host(name))

    async def silence(self, name: str) -> None:
        """Ends the host's agent cleanly; the controller counts the worker as not ready."""
        await self._end(name)
        await self.cluster.until(lambda: self._not_ready(name), f"{name} is not ready")

    async def _not_ready(self, name: str) -> bool:
        return not await self.cluster.worker_is(name, "ready")

    async def _end(self, name: str) -> None:
        agent = self._agents.pop(name)
        agent.stop.set()
        async with asyncio.timeout(_LIMIT_S):
            await agent.task

    async def clear(self) -> None:
        """Deletes deployments and hosts, with their engines."""
        for one in (await self.cluster.get("/deployments"))["items"]:
            await self.cluster.delete(one["name"])
        await self.cluster.until(lambda: self._is_empty("/deployments", "/instances"), "nothing runs any more")
        await asyncio.gather(*(self._end(name) for name in list(self._agents)))
        for worker in (await self.cluster.get("/workers"))["items"]:
            status, answer = await self.cluster.call("DELETE", f"/workers/{worker['name']}")
            assert status in (200, 202, 204), answer
        await self.cluster.until(lambda: self._is_empty("/workers"), "all are gone")

    async def _is_empty(self, *paths: str) -> bool:
        return not any([(await self.cluster.get(path))["items"] for path in paths])

    # What a user does

    async def plan(self, *manifests: Json) -> list[Json]:
        """The plan for these instances."""
        written = [{"kind": "Deployment", "engine": "simulated", **one} for one in manifests]
        answer = await self.cluster.post("/plan", {"manifests": written})
        return list(answer["items"])

    async def applied(self, manifest: Json) -> Json:
        """The instance of an applied manifest, once it is placed or has a reason."""
        await self.cluster.apply(**manifest)
        found: list[Json] = []

        async def decided() -> bool:
            found[:] = await self.cluster.instances(manifest["name"])
            return bool(found) and bool(found[0]["status"]["explain"] or found[0]["status"]["claims"])

        await self.cluster.until(decided, f"{manifest['name']} is decided")
        return found[0]


def gpus_of(where: dict[str, list[int]]) -> list[str]:
    """GPUs by host and index, as UUIDs."""
    return [gpu_uuid(name, index) for name, indices in where.items() for index in indices]


@asynccontextmanager
async def site_in(folder: Path) -> AsyncIterator[Site]:
    """A site; its controller runs until the end of the context."""
    cluster = Cluster(folder)
    try:
        await cluster.start_controller()
        yield Site(cluster)
    finally:
        await cluster.aclose()
