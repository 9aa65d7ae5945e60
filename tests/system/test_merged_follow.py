"""Two replicas on two hosts write their logs themselves; both are followed as one, over the death of an agent."""

import asyncio
import json
from typing import Any

import aiohttp

from support.processes.cluster import Cluster

WRITER = "i=0; while true; do echo line $i; i=$((i+1)); sleep 0.1; done"


async def test_a_merged_follow_survives_an_agent(cluster: Cluster) -> None:
    await cluster.start_controller()
    for host in ("h1", "h2"):
        await cluster.start_agent(host, gpus=1)
    spec = {"engine": "custom", "command": ["sh", "-c", WRITER], "resources": {"gpus": 1}, "replicas": 2}
    await cluster.apply("d", **spec)
    await cluster.running("d")
    lines: dict[str, list[int]] = {}
    found: list[dict[str, Any]] = []

    async def follow() -> None:
        path = "/deployments/d/logs?follow=true&format=json&tail=0"
        async with cluster.session.get("/api/v1" + path, timeout=aiohttp.ClientTimeout(total=None)) as answer:
            assert answer.status == 200
            while text := await answer.content.readline():
                found.append(json.loads(text))
                if "line" in found[-1]:
                    lines.setdefault(found[-1]["instance"], []).append(int(found[-1]["line"].split()[1]))

    following = asyncio.create_task(follow())
    try:
        await cluster.until(lambda: len(lines) == 2 and all(len(one) > 5 for one in lines.values()), "both are read")
        cluster.kill("h1")
        await asyncio.sleep(1.0)
        await cluster.start_agent("h1", gpus=1)
        before = {name: len(numbers) for name, numbers in lines.items()}
        await cluster.until(lambda: all(len(lines[name]) > before[name] + 20 for name in lines), "both go on", 30)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    for numbers in lines.values():
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "each line once, in order"
    assert [one["note"]["code"] for one in found if "note" in one] == ["worker_unreachable"]
