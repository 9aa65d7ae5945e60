"""Deployments that sleep and wake on real processes: requests to them, and what is seen of them."""

import asyncio
import time
from datetime import datetime
from typing import Any

from support.processes.cluster import Cluster

CHAT = "/v1/chat/completions"
SLEEPY = {"replicas": {"min": 0, "max": 1}, "resources": {"gpus": 1}}
QUICK = {"target": 8, "window": "1s", "idle_after": "1s", "down_window": "1s"}


def body(told: str = "tokens=2", model: str = "chat", **more: Any) -> dict[str, Any]:
    """A chat request. `told`: what its prompt tells the simulated engine."""
    return {"model": model, "messages": [{"role": "user", "content": f"[simulate {told}]"}], **more}


async def ask(cluster: Cluster, url: str = "", **fields: Any) -> tuple[int, Any]:
    """Status and answer; the error's code where there is one."""
    async with cluster.session.post((url or cluster.url) + CHAT, json=body(**fields)) as answer:
        content = await answer.json()
        return answer.status, content["error"]["code"] if "error" in content else content


async def begin(cluster: Cluster, *, gpus: int = 8, env: dict[str, str] | None = None, **spec: Any) -> None:
    """A controller, one host, and the sleeping deployment `chat`."""
    await cluster.start_controller(**(env or {}))
    await cluster.start_agent("gpu-1", gpus=gpus)
    await cluster.apply("chat", **{**SLEEPY, **spec})
    await asleep(cluster)


async def asleep(cluster: Cluster, limit_s: float = 40.0) -> None:
    await cluster.until(lambda: cluster.phase_is("chat", "asleep"), "chat is asleep", limit_s)


async def ready_at(cluster: Cluster) -> float:
    """When its replica was ready, in seconds of the wall clock."""

    async def runs() -> Any:
        return [i for i in await cluster.instances("chat") if i["status"]["phase"] == "running"]

    await cluster.until(runs, "a replica runs")
    (instance,) = await runs()
    return datetime.fromisoformat(instance["status"]["phase_since"]).timestamp()


async def events(cluster: Cluster, *reasons: str) -> list[Any]:
    found = (await cluster.get("/events?limit=1000"))["items"]
    return [event for event in reversed(found) if event["reason"] in reasons]


async def sleeps(cluster: Cluster) -> int:
    return len(await events(cluster, "asleep"))


async def reached(cluster: Cluster, moment: str, met: int, limit_s: float = 40.0) -> int:
    """
    Waits for a moment of a stop for idleness: `decided`, `under way` or `over`.

    Args:
        met: The sleeps that were decided when the caller last met one. A stop that was decided since counts, also where
            the caller was too slow to see it come. Where the moment has passed, or an earlier stop took the last
            requests with it, another request brings the next stop.

    Returns:
        The sleeps decided until now.
    """
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        phases, decided = await cluster.phases("chat"), await sleeps(cluster)
        later = decided > met
        if {"decided": later, "under way": phases == ["stopping"], "over": later and not phases}[moment]:
            return decided
        if not phases:
            assert (await ask(cluster))[0] == 200
        await asyncio.sleep(0.01)
    raise AssertionError(f"no stop was {moment}: {phases}, {decided} sleeps")


async def ask_many(cluster: Cluster, number: int, **fields: Any) -> list[tuple[int, Any]]:
    """So many requests at once: status and answer, or the error's code."""
    return await asyncio.gather(*(ask(cluster, **fields) for _ in range(number)))


async def epochs(cluster: Cluster, deployment: str = "chat") -> list[int]:
    """How often each of its instances was started."""
    return [one["status"]["epoch"] for one in await cluster.instances(deployment)]


async def gauge(cluster: Cluster, name: str, url: str = "", **labels: str) -> float:
    """The sum of a metric's samples with these labels."""
    async with cluster.session.get(f"{url or cluster.url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    found = [line for line in lines if line.startswith((name + "{", name + " "))]
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found if all(one in line for one in wanted))
