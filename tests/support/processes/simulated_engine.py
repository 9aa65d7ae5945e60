"""A simulated engine's process with a client, for tests of the engine itself."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from agent.processes.ports import PortAllocator


@dataclass(frozen=True)
class SimulatedEngine:
    """The process, its base URL, and a client of it."""

    process: asyncio.subprocess.Process
    url: str
    client: aiohttp.ClientSession

    async def counters(self) -> dict[str, Any]:
        """What the engine has counted."""
        async with self.client.get("/simulated/counters") as answer:
            return dict(await answer.json())

    async def until(self, timeout_s: float = 10, **figures: Any) -> dict[str, Any]:
        """Waits until the counters have these figures; returns all."""
        async with asyncio.timeout(timeout_s):
            while True:
                counters = await self.counters()
                if all(counters[name] == figure for name, figure in figures.items()):
                    return counters
                await asyncio.sleep(0.01)


@asynccontextmanager
async def simulated_engine(*args: str, env: Mapping[str, str] | None = None) -> AsyncIterator[SimulatedEngine]:
    """Starts an engine and ends it."""
    ports = PortAllocator()
    port = ports.allocate()
    argv = ("-P", "-m", "agent.simulated_engine", "--port", str(port), "--model", "demo", *args)
    process = await asyncio.create_subprocess_exec(sys.executable, *argv, stdout=asyncio.subprocess.PIPE, env=env)
    assert process.stdout is not None
    url = f"http://127.0.0.1:{port}"
    connector = aiohttp.TCPConnector(limit=0)
    try:
        async with asyncio.timeout(60), aiohttp.ClientSession(url, connector=connector) as client:
            assert b"serving demo" in await process.stdout.readline()
            yield SimulatedEngine(process, url, client)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
        ports.close()


def chat(said: str, **fields: Any) -> dict[str, Any]:
    """A chat request."""
    return {"model": "demo", "messages": [{"role": "user", "content": said}], **fields}


def events(text: str) -> list[tuple[str, Any]]:
    """The server-sent events in a text: names ("" without one) and contents, which are JSON but for `[DONE]`."""
    found = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = "", ""
        for line in block.split("\n"):
            name = line.removeprefix("event: ") if line.startswith("event: ") else name
            data = line.removeprefix("data: ") if line.startswith("data: ") else data
        found.append((name, data if data == "[DONE]" else json.loads(data)))
    return found
