"""The daemons of an `up`, without any of their work."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from cli.up.hosts import HostChoice
from cli.up.startup import AgentStart, Daemons, Options
from support.builders.api_objects import worker
from support.standins.api import KEY, ApiDouble


class FakeDaemons:
    """The daemons of an `up`: the controller is an API double, and each agent adds a ready worker to it."""

    def __init__(self, double: ApiDouble, data_dir: Path, *, gpus: int = 0) -> None:
        self.double = double
        self.data_dir = data_dir
        self.agents: list[AgentStart] = []
        self.log: list[str] = []
        self.on_agent: Callable[[AgentStart], None] = lambda _start: None
        self.daemons = Daemons(self._controller, self._agent, self._count, "this-host", KEY)
        self._gpus = gpus

    async def _controller(self, stop: asyncio.Event, on_ready: Callable[[str], None]) -> int:
        (self.data_dir / "client.env").write_text(f"GPUWARD_URL={self.double.url}\nGPUWARD_API_KEY={KEY}\n")
        on_ready(self.double.url)
        await stop.wait()
        self.log.append("controller down")
        return 0

    async def _agent(self, start: AgentStart, stop: asyncio.Event) -> int:
        self.agents.append(start)
        self.double.add(worker(start.host.name))
        self.on_agent(start)
        await stop.wait()
        self.log.append(f"{start.host.name} down")
        return 0

    async def _count(self) -> int:
        return self._gpus

    def options(self, **changes) -> Options:
        given = {"hosts": HostChoice(), "example": False, **changes}
        return Options(
            data_dir=self.data_dir,
            host="127.0.0.1",
            port=0,
            logs=self.data_dir / "logs",
            program=("gpuward",),
            **given,
        )
