"""What wakes a sleeping model and what does not, and what its clients get where it cannot run or is in the way."""

import asyncio
import statistics
import time
from typing import Any

import aiohttp
import pytest

from support.database.gate import gate_to
from support.processes.cluster import Cluster
from support.processes.gateways import Another, embedded_dsn
from support.processes.sleeping import (
    CHAT,
    QUICK,
    SLEEPY,
    ask,
    ask_many,
    asleep,
    begin,
    body,
    epochs,
    events,
    gauge,
    reached,
)

pytestmark = [pytest.mark.cases, pytest.mark.timeout(200)]
ONE_GPU = 1


async def test_one_gpu_is_enough_for_a_model_that_is_woken_while_it_stops(cluster: Cluster) -> None:
    """G29, G31: its GPU is still held by the replica that stops. Capacity is being freed: the request is held."""
    await begin(cluster, gpus=ONE_GPU, scaling=QUICK, args={"ignore_sigterm": True}, drain_time="4s")
    for _ in range(2):
        assert (await ask(cluster))[0] == 200
        await reached(cluster, "under way", 0)
        answers = await ask_many(cluster, 5)
        assert {status for status, _ in answers} == {200}, answers
    await cluster.audit()


async def test_g31_a_start_that_fails_three_times_is_told_and_tried_again_after_the_back_off(cluster: Cluster) -> None:
    await begin(cluster, env={"GPUWARD_RESTART_BACKOFF_S": "1.5"}, args={"exit_after": 0, "exit_code": 3})
    answers = await ask_many(cluster, 4)
    assert answers == [(503, "start_failed")] * 4, "all that waited"
    assert max(await epochs(cluster)) == 3
    began = time.monotonic()
    async with cluster.session.post(CHAT, json=body()) as answer:
        content = (await answer.json())["error"]
    assert (answer.status, content["code"]) == (503, "start_failed")
    assert time.monotonic() - began < 3, "it does not wait for the back-off"
    assert 1 <= int(answer.headers["Retry-After"]) <= 6
    assert "exited with code 3" in content["details"]["why"]
    assert max(await epochs(cluster)) == 3, "not before"

    async def tries_again() -> bool:
        return max(await epochs(cluster), default=0) == 4

    await cluster.until(tries_again, "the next attempt, for the request that was refused", 30)
    again = await ask(cluster)
    assert again == (503, "start_failed"), "held for that attempt, or refused after it"
    key = await cluster.post("/keys", {"role": "inference", "name": "client"})
    headers = {"Authorization": f"Bearer {key['key']}"}
    async with cluster.session.post(CHAT, json=body(), headers=headers) as answer:
        content = (await answer.json())["error"]
    assert "why" not in content["details"], "for operators' keys only"


async def test_g31_refusals_come_soon_after_placement_said_so_and_the_instance_keeps_its_place(
    cluster: Cluster,
) -> None:
    await begin(cluster, resources={"gpus": 64})
    began = time.monotonic()
    assert await ask_many(cluster, 3) == [(503, "no_capacity")] * 3
    assert time.monotonic() - began < 8, "2 s, and four times that on a loaded machine"
    (pending,) = await cluster.instances("chat")
    took_s = []
    for _ in range(12):
        await asyncio.sleep(0.5)
        began = time.monotonic()
        assert await ask(cluster) == (503, "no_capacity")
        took_s.append(time.monotonic() - began)
    assert statistics.median(took_s) < 1, "at once: it is known"
    assert [one["name"] for one in await cluster.instances("chat")] == [pending["name"]]
    assert len(await events(cluster, "woken")) == 1
    assert await gauge(cluster, "gpuward_gateway_refusals_total", deployment="chat", code="no_capacity") == 15


async def test_g34_a_gateway_that_is_cut_off_and_serves_stops_nothing(cluster: Cluster) -> None:
    """Its stream of many seconds is unknown to the leader. Nothing stops, and a condition names the gateway."""
    await begin(cluster, scaling=QUICK)

    async def stream(url: str) -> bytes:
        told = "tokens=400 token_seconds=0.05"
        timeout = aiohttp.ClientTimeout(total=120)
        async with cluster.session.post(url + CHAT, json=body(told, stream=True), timeout=timeout) as answer:
            assert answer.status == 200
            return await answer.content.read()

    async with gate_to(embedded_dsn(cluster)) as gate:
        other = Another(cluster, gate.dsn)
        await cluster.until(other.is_ready, "the other gateway serves")
        assert (await ask(cluster))[0] == 200
        streaming = asyncio.create_task(stream(other.url))
        await asyncio.sleep(1.5)
        gate.freeze()

        async def is_named() -> bool:
            conditions = (await cluster.get("/deployments/chat"))["status"]["conditions"]
            (found,) = [one for one in conditions if one["type"] == "DemandKnown"]
            return found["status"] == "false" and f":{other.port}" in found["message"]

        await cluster.until(is_named, "the condition names the silent gateway", 30)
        assert (await ask(cluster, other.url))[0] == 200, "it goes on serving"
        assert (await streaming).endswith(b"data: [DONE]\n\n")
        await asyncio.sleep(4)
        assert await cluster.phase_of("chat") == "running", "idle as far as is known, which is not enough"
        assert await gauge(cluster, "gpuward_autoscaler_silent_gateways") == 1
        await gate.open()
        await asleep(cluster)


async def test_g36_what_does_not_ask_for_the_model_does_not_wake_it(cluster: Cluster) -> None:
    names = {"aliases": ["gpt-4o-mini"], "adapters": {"support": "path:/lora/support"}}
    await begin(cluster, scaling=QUICK, serving=names)
    key = await cluster.post("/keys", {"role": "inference", "name": "slow", "models": ["gpt-4o-mini"], "rpm": 1})
    foreign = await cluster.post("/keys", {"role": "inference", "name": "other", "models": ["other-*"]})
    own, other = ({"Authorization": f"Bearer {one['key']}"} for one in (key, foreign))

    async def status(method: str, path: str, headers: Any = None, model: str = "chat") -> int:
        sent = body(model=model) if method == "POST" else None
        async with cluster.session.request(method, path, json=sent, headers=headers) as answer:
            return answer.status

    assert await status("POST", CHAT, own, "not-mine") == 404, "it takes the key's one request of this minute"
    assert await status("POST", CHAT, own, "gpt-4o-mini") == 429
    assert await status("POST", CHAT, other) == 404
    assert await status("POST", CHAT, {"Authorization": "Bearer gpw_wrong"}) == 401
    assert await status("HEAD", CHAT) == 405
    assert await status("GET", CHAT) == 405
    assert await status("GET", "/v1/models") == 200
    assert await status("HEAD", "/v1/models") in (200, 405)
    assert await status("GET", "/healthz") == 200
    assert await status("GET", "/api/v1/deployments/chat") == 200
    await asyncio.sleep(2.5)
    assert await events(cluster, "woken") == []
    assert await cluster.instances() == []
    alias = await cluster.post("/keys", {"role": "inference", "name": "alias", "models": ["gpt-4o-mini"]})
    allowed = {"Authorization": f"Bearer {alias['key']}"}
    assert await status("POST", CHAT, allowed, "chat") == 404, "the alias alone is its own"
    assert await status("POST", CHAT, allowed, "gpt-4o-mini") == 200
    assert len(await events(cluster, "woken")) == 1
    await asleep(cluster)
    whole = await cluster.post("/keys", {"role": "inference", "name": "whole", "models": ["chat"]})
    allowed = {"Authorization": f"Bearer {whole['key']}"}
    assert await status("POST", CHAT, allowed, "support") == 200, "a deployment's names follow its own"
    assert len(await events(cluster, "woken")) == 2


async def test_what_keeps_being_asked_about_falls_asleep_all_the_same(cluster: Cluster) -> None:
    """G32: lists, probes, metrics and refused requests are no demand."""
    await begin(cluster, scaling=QUICK)
    assert (await ask(cluster))[0] == 200
    stop = asyncio.Event()

    async def look() -> None:
        while not stop.is_set():
            for path in ("/v1/models", "/healthz", "/readyz", "/metrics", "/api/v1/deployments/chat"):
                async with cluster.session.get(path):
                    pass
            async with cluster.session.post(CHAT, json=body(model="unknown")):
                pass
            async with cluster.session.get(CHAT):
                pass

    looking = asyncio.create_task(look())
    try:
        await asleep(cluster)
    finally:
        stop.set()
        await looking


@pytest.mark.parametrize(("end", "told"), [("stop", (503, "stopped")), ("delete", (404, "model_not_found"))])
async def test_requests_that_wait_are_told_when_their_deployment_is_stopped_or_deleted(
    cluster: Cluster, end: str, told: tuple[int, str]
) -> None:
    await begin(cluster, args={"load_seconds": 600})
    waiting = [asyncio.create_task(ask(cluster)) for _ in range(3)]
    await cluster.until(lambda: cluster.instances("chat"), "it wakes")
    began = time.monotonic()
    await (cluster.post("/deployments/chat/stop") if end == "stop" else cluster.delete("chat"))
    assert await asyncio.gather(*waiting) == [told] * 3
    assert time.monotonic() - began < 4, "1 s, and four times that on a loaded machine"

    async def all_gone() -> bool:
        return not await cluster.instances()

    await cluster.until(all_gone, "nothing of it is left", 40)


async def test_g24_two_gateways_of_two_processes_share_one_queue(cluster: Cluster) -> None:
    """Its length is exact at once, and one gateway gets all of it where the other waits for nothing."""
    serving = {"queue": {"length": 4, "wait": "60s"}}
    await begin(cluster, env={"GPUWARD_GATEWAY_PROCESSES": "2"}, args={"load_seconds": 600}, serving=serving)
    other = Another(cluster, processes=2)
    await cluster.until(other.is_ready, "the other gateway serves")

    async def fresh(url: str) -> tuple[int, str]:
        """Over a connection of its own, which any of the processes may take."""
        async with (
            aiohttp.ClientSession(headers=cluster.session.headers) as session,
            session.post(url + CHAT, json=body()) as answer,
        ):
            return answer.status, (await answer.json())["error"]["code"]

    for urls in ([cluster.url, other.url] * 6, [other.url] * 7, [cluster.url] * 5):
        asked = [asyncio.create_task(fresh(url)) for url in urls]

        async def four_wait(asked: list[asyncio.Task[tuple[int, str]]] = asked) -> bool:
            return sum(not one.done() for one in asked) <= 4

        await cluster.until(four_wait, "the others are refused", 10)
        await asyncio.sleep(1.0)
        refused = [one.result() for one in asked if one.done()]
        assert refused == [(503, "queue_full")] * (len(urls) - 4)
        for one in asked:
            one.cancel()
        await asyncio.wait(asked)

        async def none_waits() -> bool:
            waiting = [
                await gauge(cluster, "gpuward_gateway_requests_waiting", url) for url in (cluster.url, other.url)
            ]
            return sum(waiting) == 0

        await cluster.until(none_waits, "the gateways know that their clients have left", 10)


async def test_a_gang_and_what_preempts_sleep_and_wake(cluster: Cluster) -> None:
    """A model of two hosts takes both from a lower one, and gives them back when it sleeps."""
    await cluster.start_controller()
    for name in ("a", "b"):
        await cluster.start_agent(name, gpus=2)
    small = {"resources": {"gpus": 1}, "priority": 10, "drain_time": "1s"}
    await cluster.apply("small", replicas=4, **small)
    await cluster.running("small")
    resources = {"gpus": 4, "max_workers": 2}
    await cluster.apply("chat", **{**SLEEPY, "resources": resources}, priority=500, preempt=True, scaling=QUICK)
    await asleep(cluster)
    answers = await ask_many(cluster, 4)
    assert {status for status, _ in answers} == {200}, answers
    (instance,) = await cluster.instances("chat")
    assert len(instance["status"]["gpus"]) == 4
    assert len(await events(cluster, "woken")) == 1
    await asleep(cluster)
    await cluster.running("small")
    await cluster.audit()
