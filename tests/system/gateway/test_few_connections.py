"""One key asks slow models for all that a gateway with few files can hold; others and the administrator go on."""

import asyncio
import os
import sys
import time
from contextlib import AsyncExitStack

import aiohttp
import pytest

from support.processes.cluster import Cluster
from support.processes.served_models import CHAT, bearer, listed

pytestmark = [pytest.mark.cases, pytest.mark.timeout(300)]

FEW_FILES = ("sh", "-c", 'ulimit -Sn 256; ulimit -Hn 448; exec "$@"', "sh")  # 128 connections
ASKED = 240
SLOW = ("a", "b", "c", "d")


def asked(model: str, told: str) -> dict[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": f"[simulate {told}]"}]}


async def gpuward_get(cluster: Cluster) -> float:
    """Seconds that the administrator's `gpuward get` takes."""
    key = cluster.session.headers["Authorization"].removeprefix("Bearer ")
    env = {**os.environ, "GPUWARD_URL": cluster.url, "GPUWARD_API_KEY": key}
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "cli", "get", "workers", env=env,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    return time.monotonic() - began


async def test_one_key_shuts_out_neither_the_administrator_nor_another_key(cluster: Cluster) -> None:
    cluster.prefix = FEW_FILES
    await cluster.start_controller()
    cluster.prefix = ()
    await cluster.start_agent("gpu-1")
    for name in (*SLOW, "quick"):
        await cluster.apply(name, resources={"gpus": 0}, serving={"max_in_flight": 16})
        await cluster.running(name)
    await listed(cluster, *SLOW, "quick")
    one, two = [(await cluster.post("/keys", {"role": "inference"}))["key"] for _ in range(2)]
    async with AsyncExitStack() as stack:
        unbounded = aiohttp.TCPConnector(limit=0)
        session = await stack.enter_async_context(aiohttp.ClientSession(cluster.url, connector=unbounded))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        refused: list[int] = []

        async def hold(number: int) -> None:
            body = asked(SLOW[number % len(SLOW)], "wait=100")
            async with session.post(CHAT, json=body, headers=bearer(one)) as answer:
                refused.append(answer.status)

        held: list[asyncio.Task[None]] = []
        stack.callback(lambda: [task.cancel() for task in held])
        for number in range(ASKED):
            held.append(group.create_task(hold(number)))
            if number % 10 == 0:
                await asyncio.sleep(0.05)  # else some find no connection while others' heads come
        await cluster.until(lambda: len(refused) > ASKED / 2, "the key gets no more")
        assert set(refused) == {429}
        assert await gpuward_get(cluster) < 20
        for _ in range(3):
            async with session.post(CHAT, json=asked("quick", "tokens=1"), headers=bearer(two)) as answer:
                assert answer.status == 200, await answer.text()
        waiting = [
            group.create_task(session.post(CHAT, json=asked("quick", "wait=2"), headers=bearer(two))) for _ in range(24)
        ]
        statuses = [(await task).status for task in waiting]
        assert statuses.count(200) == len(statuses), "fewer than its equal part"
        assert await gpuward_get(cluster) < 20
