"""Real agents in this process: started, stopped cleanly, or cancelled as in a crash."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from agent.daemon import run_agent
from agent.gpus.simulated import gpu_uuid
from agent.settings import AgentSettings
from schemas.wire import SPOKEN, Protocols
from support.standins.controller import TOKEN, WAIT_S, ControllerDouble

HOST = {
    "name": "sim-1",
    "host_memory": "64GiB",
    "labels": {"zone": "a"},
    "gpus": [{"model": "H100", "memory": "8GiB", "count": 2}],
}
GPU0, GPU1 = gpu_uuid("sim-1", 0), gpu_uuid("sim-1", 1)


class AgentUnderTest:
    """One agent's task."""

    def __init__(self, settings: AgentSettings, spoken: Protocols = SPOKEN) -> None:
        self.settings = settings
        self.ready = asyncio.Event()
        self._stop = asyncio.Event()
        self.task = asyncio.create_task(run_agent(settings, stop=self._stop, on_ready=self.ready.set, spoken=spoken))

    async def stop(self) -> int:
        """Shuts down cleanly; returns the exit code."""
        self._stop.set()
        async with asyncio.timeout(WAIT_S):
            return await self.task

    async def crash(self) -> None:
        """Ends at once, without a message, and leaves the engines."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def write_hosts(folder: Path, host: dict[str, Any]) -> Path:
    """A file of simulated hosts with this one; an existing one is kept."""
    file = folder / "hosts.yaml"
    if not file.exists():
        file.write_text(yaml.safe_dump({"workers": [host]}))
    return file


def simulated_settings(url: str, folder: Path, token: str, host: dict[str, Any], **fields: Any) -> AgentSettings:
    """Settings of an agent that simulates this host and keeps its files in the folder."""
    hosts = write_hosts(folder, host)
    folders = {"data_dir": folder / "data", "cache_dir": folder / "models"}
    given = {"name": host["name"], "simulate": hosts, "proxy_host": "127.0.0.1", **folders}
    return AgentSettings(**{"controller_url": url, "join_token": token, **given, **fields})


def settings_for(controller: ControllerDouble, folder: Path, **fields: Any) -> AgentSettings:
    """Settings of an agent that can join this controller."""
    return simulated_settings(controller.url, folder, TOKEN, HOST, **{"name": None, **fields})


@asynccontextmanager
async def running_agent(controller: ControllerDouble, folder: Path, **fields: Any) -> AsyncIterator[AgentUnderTest]:
    """A connected agent; at the end it stops with its engines."""
    agent = AgentUnderTest(settings_for(controller, folder, **fields))
    try:
        async with asyncio.timeout(WAIT_S):
            await asyncio.wait({agent.task, asyncio.create_task(agent.ready.wait())}, return_when="FIRST_COMPLETED")
        assert not agent.task.done(), "the agent ended instead of connecting"
        yield agent
    finally:
        if not agent.task.done():
            await agent.stop()
