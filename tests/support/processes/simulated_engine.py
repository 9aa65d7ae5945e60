"""An engine's process with a client, for tests of the engine itself."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from agent.processes.ports import PortAllocator


@dataclass(frozen=True)
class SimulatedEngine:
    """The process, its base URL, a client of it, and its log before it served."""

    process: asyncio.subprocess.Process
    url: str
    client: aiohttp.ClientSession
    log: list[str]


@asynccontextmanager
async def simulated_engine(*args: str) -> AsyncIterator[SimulatedEngine]:
    """Starts the product's engine and ends it."""
    ports = PortAllocator()
    port = ports.allocate()
    argv = ("-P", "-m", "agent.simulated_engine", "--port", str(port), "--model", "demo", *args)
    process = await asyncio.create_subprocess_exec(sys.executable, *argv, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    url = f"http://127.0.0.1:{port}"
    connector = aiohttp.TCPConnector(limit=0)
    try:
        async with asyncio.timeout(60), aiohttp.ClientSession(url, connector=connector) as client:
            before = []
            while b"serving demo" not in (line := await process.stdout.readline()):
                assert line, "the engine ended"
                before.append(line.decode())
            yield SimulatedEngine(process, url, client, before)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
        ports.close()


def chat(said: str, **fields: Any) -> dict[str, Any]:
    """A chat request."""
    return {"model": "demo", "messages": [{"role": "user", "content": said}], **fields}
