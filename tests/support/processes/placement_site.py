"""A controller process, and simulated hosts that join and leave as each case needs them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent.gpus.simulated import gpu_uuid
from support.processes.agents import AgentUnderTest, simulated_settings
from support.processes.cluster import Cluster, Json, Prepared
from support.processes.placement_tables import host_of


class Site:
    """A controller for all cases, and the hosts of the current one."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._agents: dict[str, AgentUnderTest] = {}
        self._joined = 0

    async def host(self, name: str, **more: Any) -> None:
        """Lets the host of that name join; `more` changes its description."""
        host = host_of(name, **more)
        self._joined += 1
        folder = self.cluster.folder / f"agent-{self._joined}"
        folder.mkdir()
        token = (await self.cluster.post("/tokens", {"name": name}))["token"]
        agent = AgentUnderTest(simulated_settings(self.cluster.url, folder, token, host))
        self._agents[name] = agent

        async def settled() -> bool:
            return agent.task.done() or await self.cluster.worker_is(name, "ready")

        await self.cluster.until(settled, f"{name} is ready")
        assert not agent.task.done(), "the agent ended; its log says why"

    async def hosts(self, *names: str) -> None:
        """Lets several hosts join at once."""
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(self.host(name))

    async def silence(self, name: str) -> None:
        """Ends the host's agent cleanly; the controller counts the worker as not ready."""
        await self._agents.pop(name).stop()
        await self.cluster.until(lambda: self._not_ready(name), f"{name} is not ready")

    async def _not_ready(self, name: str) -> bool:
        return not await self.cluster.worker_is(name, "ready")

    async def clear(self) -> None:
        """Deletes deployments and hosts, with their engines."""
        for one in (await self.cluster.get("/deployments"))["items"]:
            await self.cluster.delete(one["name"])
        await self.cluster.until(lambda: self._is_empty("/deployments", "/instances"), "nothing runs any more")
        agents, self._agents = self._agents, {}
        await asyncio.gather(*(agent.stop() for agent in agents.values()))
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
async def site_in(folder: Path, prepared: Prepared) -> AsyncIterator[Site]:
    """A site; its controller runs until the end of the context."""
    cluster = Cluster(folder, prepared)
    try:
        cluster.use_rig()  # for the figures of models
        await cluster.start_controller()
        yield Site(cluster)
    finally:
        await cluster.aclose()
