"""A gateway and an agent that know both controllers: one is killed, and they go on with the other."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from support.database.postgres import PostgresServer, create_database, drop_database
from support.processes.controllers import Controllers
from support.processes.faults import RECOVERY_S, SHORT
from support.processes.request_load import LIMIT_S, Load

CLIENTS = 4


@pytest.fixture
async def controllers(data_dir: Path, postgres: PostgresServer) -> AsyncIterator[tuple[Controllers, str]]:
    """Controllers a and b on one database, of which a leads; and the database."""
    dsn = await create_database(postgres)
    cluster = Controllers(data_dir, dsn)
    try:
        for name in ("a", "b"):
            await cluster.start_named(name, **SHORT)
        yield cluster, dsn
    finally:
        await cluster.aclose()
        await drop_database(postgres, dsn)


@pytest.mark.cases
async def test_gateway_and_agent_go_on_with_the_other_controller(controllers: tuple[Controllers, str]) -> None:
    cluster, dsn = controllers
    addresses = ",".join(f"http://127.0.0.1:{cluster.port_of(name)}" for name in ("a", "b"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    cluster.start("gateway", "gateway", "--controller", addresses, "--port", str(port), GPUWARD_DATABASE_URL=dsn)
    url = f"http://127.0.0.1:{port}"
    await cluster.start_agent("w", url=addresses)
    await cluster.apply("chat", engine="simulated", resources={"gpus": 1, "gpu_memory": "1GiB"})
    await cluster.running("chat")

    async def status(method: str, path: str, body: object = None) -> int:
        async with aiohttp.ClientSession(headers=cluster.headers()) as session:
            try:
                async with session.request(method, url + path, json=body) as answer:
                    await answer.read()
                    return answer.status
            except aiohttp.ClientError:
                return 0

    async def serves() -> bool:
        return await status("GET", "/api/v1/deployments/chat") == 200

    await cluster.until(serves, "the gateway has found a controller", RECOVERY_S)
    load = Load(url, cluster.headers())
    clients = [asyncio.create_task(load.client()) for _ in range(CLIENTS)]
    try:
        await cluster.until(lambda: len(load.ends) > 50, "requests are answered", LIMIT_S)
        cluster.kill_named("a")
        await cluster.until(serves, "the API is asked of the other one", RECOVERY_S)
        await cluster.until(lambda: cluster.leads("b"), "b leads", RECOVERY_S)
        cluster.through("b")
        await cluster.until(lambda: cluster.worker_is("w", "ready"), "the agent has the other one", RECOVERY_S)
        spec = {"engine": "simulated", "resources": {"gpus": 1, "gpu_memory": "1GiB"}}
        assert await status("PUT", "/api/v1/deployments/after", spec) == 201
        await cluster.running("after")
        before = len(load.ends)
        await cluster.until(lambda: len(load.ends) > before + 50, "models are served still", LIMIT_S)
    finally:
        load.over.set()
        await asyncio.gather(*clients)
    assert [end for end in load.ends if end[2] != 200] == [], "no controller is on the way to a model"
    await cluster.audit()
