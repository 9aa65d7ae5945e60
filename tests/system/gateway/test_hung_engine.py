"""An engine that generates nothing while its port answers: requests go elsewhere, and it is restarted."""

import asyncio
import time
from typing import Any

import aiohttp
import pytest

from support.processes.cluster import Cluster
from support.processes.gateways import CHAT, asked
from support.processes.served_models import counters, listed, serve

pytestmark = [pytest.mark.cases, pytest.mark.timeout(300)]
PROBE = {"period": "200ms", "no_answer_requests": 1, "no_answer_after": "3s"}
GENERATE = {"period": "200ms", "no_answer_requests": 0, "failures": 2, "generate": True, "generate_every": "1s",
            "generate_timeout": "1s"}  # fmt: skip


async def hang(cluster: Cluster, model: str) -> None:
    """Hangs one replica; its client never gets an answer."""
    body = asked("hang") | {"model": model}
    try:
        limit = aiohttp.ClientTimeout(total=240)
        async with cluster.session.post(cluster.url + CHAT, json=body, timeout=limit) as answer:
            assert answer.status >= 500, "the engine is killed at the end"
    except (aiohttp.ClientError, TimeoutError):
        pass


async def statuses(cluster: Cluster, model: str) -> list[dict[str, Any]]:
    return [one["status"] for one in await cluster.instances(model)]


async def test_23_requests_leave_a_hung_engine_and_it_is_restarted(cluster: Cluster) -> None:
    await serve(
        cluster,
        passive={"replicas": 2, "resources": {"gpus": 1}, "probe": PROBE},
        asked={"replicas": 2, "resources": {"gpus": 1}, "probe": GENERATE},
        slow={"resources": {"gpus": 1}, "probe": PROBE | {"generate": True, "generate_every": "1s"}},
    )
    began = time.monotonic() - 30.0
    for model in ("passive", "asked", "slow"):
        await listed(cluster, model)
    # What is slow is not hung: for longer than all limits a token comes every half second, and nothing else.
    slowly = asyncio.create_task(one_answer(cluster, "slow", "tokens=60 token_seconds=0.5"))
    clients = [asyncio.create_task(hang(cluster, model)) for model in ("passive", "asked")]
    try:
        await asyncio.gather(*(leaves(cluster, model) for model in ("passive", "asked")))
        assert await slowly == 200
        assert [one["phase"] for one in await statuses(cluster, "slow")] == ["running"]
        assert [one["restarts"] for one in await statuses(cluster, "slow")] == [0]
        (slow,) = await counters(cluster, "slow")
        assert slow["by_path"].get("/v1/completions", 0) <= time.monotonic() - began, "at most one a second"
    finally:
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


async def leaves(cluster: Cluster, model: str) -> None:
    """Its hung replica is unhealthy for the reason, others answer meanwhile, and it is restarted."""

    async def is_unhealthy() -> bool:
        return any(one["reason"] == "no_answer" for one in await statuses(cluster, model))

    await cluster.until(is_unhealthy, f"a replica of {model} is unhealthy", 60.0)
    (sick,) = [one for one in await statuses(cluster, model) if one["phase"] == "unhealthy"]
    assert "no_answer:" in sick["message"]
    assert [await one_answer(cluster, model, "tokens=1") for _ in range(10)] == [200] * 10

    async def runs_again() -> bool:
        found = await statuses(cluster, model)
        return [one["phase"] for one in found] == ["running"] * 2 and sum(one["restarts"] for one in found) == 1

    await cluster.until(runs_again, f"the hung replica of {model} is restarted", 120.0)


async def one_answer(cluster: Cluster, model: str, told: str) -> int:
    body, limit = asked(told) | {"model": model}, aiohttp.ClientTimeout(total=120)
    async with cluster.session.post(cluster.url + CHAT, json=body, timeout=limit) as answer:
        await answer.read()
        return answer.status
