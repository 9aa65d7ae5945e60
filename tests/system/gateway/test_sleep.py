"""Models that sleep and wake on real processes: requests are held, started once, and none fails on the way."""

import asyncio
import json
import time
from typing import Any

import aiohttp
import pytest

from support.processes.cluster import Cluster
from support.processes.gateways import Another
from support.processes.sleeping import CHAT, QUICK, ask, asleep, begin, body, events, reached, ready_at, sleeps


async def test_g27_requests_on_two_gateways_wake_it_once_and_are_all_answered(cluster: Cluster) -> None:
    """G32, G36: it sleeps again once it is idle, and what does not ask for the model does not wake it."""
    await begin(cluster, scaling=QUICK, args={"load_seconds": 2}, serving={"aliases": ["alias-of-chat"]})
    other = Another(cluster)
    await cluster.until(other.is_ready, "the other gateway serves")
    async with cluster.session.get("/v1/models") as listed:
        states = {one["id"]: one["gpuward"]["state"] for one in (await listed.json())["data"]}
    assert states == {"chat": "asleep", "alias-of-chat": "asleep"}
    async with cluster.session.post(CHAT, json=body(), headers={"Authorization": "Bearer gpw_wrong"}) as refused:
        assert refused.status == 401
    async with cluster.session.head("/v1/models"):
        pass
    assert await cluster.instances() == []

    async def one(n: int) -> float:
        status, answer = await ask(cluster, other.url if n % 2 else "", model="alias-of-chat" if n % 3 else "chat")
        assert status == 200, answer
        return time.time()

    ready, *answered = await asyncio.gather(ready_at(cluster), *(one(n) for n in range(50)))
    assert min(answered) > ready - 0.5, "none is answered by a replica that is not there"
    assert max(answered) - ready < 4.0, "1 s, and four times that on a loaded machine"
    woken = await events(cluster, "woken", "autoscaled")
    assert [event["reason"] for event in woken] == ["woken"]
    assert woken[0]["evidence"]["request_id"]
    assert [i["status"]["epoch"] for i in await cluster.instances("chat")] == [1]
    await asleep(cluster)
    assert await cluster.instances() == []
    await cluster.audit()


@pytest.mark.cases
@pytest.mark.timeout(240)
async def test_no_request_fails_in_the_window_of_an_idle_stop(cluster: Cluster) -> None:
    """Requests come when it is about to be decided, decided, under way and over; each wakes it again or prevents it."""
    await begin(cluster, scaling=QUICK)

    async def burst(told: str) -> list[tuple[str, int, Any]]:
        tolds = ("tokens=2", "tokens=3 wait=0.5", "tokens=2")
        return [(told, *answer) for answer in await asyncio.gather(*(ask(cluster, told=one) for one in tolds))]

    answers = await burst("asleep")
    met = 0
    for moment in ("decided", "under way", "over") * 2:
        met = await reached(cluster, moment, met)
        answers += await burst(moment)
    assert await sleeps(cluster) >= 4, "these met sleeps; one that is under way may be the last one still"
    for late in range(8):  # about the time of the decision, which comes 1 to 2 s after the last answer
        await asyncio.sleep(1.0 + 0.15 * late)
        answers += await burst(f"{late}")
    assert [answer for answer in answers if answer[1] != 200] == []
    await asleep(cluster)
    assert len(await events(cluster, "woken")) == await sleeps(cluster)
    await cluster.audit()


@pytest.mark.cases
async def test_g29_a_wake_whose_clients_have_left_starts_nothing(cluster: Cluster) -> None:
    await begin(cluster, args={"analysis_seconds": 6})
    async with aiohttp.ClientSession(headers=cluster.session.headers) as leaving:
        asking = asyncio.create_task(leaving.post(cluster.url + CHAT, json=body()))
        await cluster.until(lambda: cluster.instances("chat"), "it wakes")
        asking.cancel()
    await asleep(cluster, 10)
    assert [event["reason"] for event in await events(cluster, "woken", "wake_withdrawn")] == [
        "woken",
        "wake_withdrawn",
    ]
    assert await cluster.instances() == []
    assert await events(cluster, "scheduled") == []


@pytest.mark.cases
async def test_g31_a_model_without_capacity_is_refused_with_the_reason(cluster: Cluster) -> None:
    await begin(cluster, resources={"gpus": 64})
    began = time.monotonic()
    async with cluster.session.post(CHAT, json=body()) as answer:
        content = await answer.json()
    assert (answer.status, content["error"]["code"]) == (503, "no_capacity")
    assert time.monotonic() - began < 10
    assert "Retry-After" in answer.headers
    assert content["error"]["details"]["why"]
    assert await cluster.phase_of("chat") == "pending", "the wish to run outlives the request"


@pytest.mark.cases
async def test_g24_requests_beyond_the_limit_wait_and_beyond_the_queue_are_refused(cluster: Cluster) -> None:
    await cluster.start_controller()
    await cluster.start_agent("gpu-1")
    await cluster.apply(
        "chat", replicas=2, resources={"gpus": 1}, serving={"max_in_flight": 3, "queue": {"length": 4, "wait": "10s"}}
    )
    await cluster.running("chat")
    await asyncio.sleep(2.5)  # then the gateway knows both replicas, even without a notification
    answers = await asyncio.gather(*(ask(cluster, told="tokens=1 wait=2") for _ in range(14)))
    refused = [answer for status, answer in answers if status != 200]
    assert refused == ["queue_full"] * 4
    assert sum(status == 200 for status, _ in answers) == 10


@pytest.mark.cases
async def test_g24_none_waits_longer_than_the_queue_allows(cluster: Cluster) -> None:
    await cluster.start_controller()
    await cluster.start_agent("gpu-1")
    await cluster.apply(
        "chat", resources={"gpus": 1}, serving={"max_in_flight": 1, "queue": {"length": 9, "wait": "1s"}}
    )
    await cluster.running("chat")
    slow = asyncio.create_task(ask(cluster, told="tokens=1 wait=8"))
    await asyncio.sleep(0.3)
    began = time.monotonic()
    assert await ask(cluster) == (503, "waited_too_long")
    assert 0.9 < time.monotonic() - began < 6
    assert (await slow)[0] == 200


@pytest.mark.cases
async def test_g35_stop_start_and_an_operators_wake(cluster: Cluster) -> None:
    await begin(cluster, scaling=QUICK)
    await cluster.post("/deployments/chat/stop")
    await cluster.until(lambda: cluster.phase_is("chat", "stopped"), "it is stopped")

    async def refused() -> bool:
        return await ask(cluster) == (503, "stopped")

    await cluster.until(refused, "requests are refused")
    assert await cluster.instances() == []
    status, answer = await cluster.call("POST", "/deployments/chat/wake", {"for_s": 60})
    assert (status, answer["error"]["code"]) == (409, "not_asleep")
    await cluster.post("/deployments/chat/start")
    await cluster.post("/deployments/chat/wake", {"for_s": 6})
    await cluster.running("chat")
    await asyncio.sleep(3)
    assert await cluster.phase_of("chat") == "running", "idle_after is over, but it is kept awake"
    await asleep(cluster)


@pytest.mark.cases
async def test_g30_a_stream_is_kept_alive_by_comments_while_its_model_loads(cluster: Cluster) -> None:
    await begin(cluster, args={"load_seconds": 28}, scaling={"idle_after": "1s", "down_window": "1s"})
    began = time.monotonic()
    async with cluster.session.post(CHAT, json=body(stream=True), timeout=aiohttp.ClientTimeout(total=90)) as answer:
        assert answer.status == 200
        assert 14 < time.monotonic() - began < 18
        assert answer.content_type == "text/event-stream"
        lines = [(round(time.monotonic() - began), line) async for line in answer.content if line.strip()]
    comments = [at for at, line in lines if line.startswith(b": waking")]
    assert len(comments) == 2
    assert 24 <= comments[1] <= 28
    events = [json.loads(line[6:]) for _, line in lines if line.startswith(b"data: {")]
    assert events
    assert lines[-1][1].strip() == b"data: [DONE]"


@pytest.mark.cases
async def test_g30_a_failure_after_the_comments_is_an_error_event(cluster: Cluster) -> None:
    await begin(cluster, args={"load_seconds": 600})
    async with cluster.session.post(CHAT, json=body(stream=True), timeout=aiohttp.ClientTimeout(total=90)) as answer:
        assert answer.status == 200
        await cluster.post("/deployments/chat/stop")
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.content.read()


@pytest.mark.cases
async def test_g30_a_request_without_streaming_is_held_silently_until_its_model_is_loaded(cluster: Cluster) -> None:
    load_s = 25.0
    await begin(cluster, args={"load_seconds": load_s}, scaling={"idle_after": "10s", "down_window": "1s"})
    sent = json.dumps(body()).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", cluster.port)
    key = cluster.session.headers["Authorization"]
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\nContent-Length: {len(sent)}\r\n\r\n"
    began = time.monotonic()
    writer.write(head.encode() + sent)
    async with asyncio.timeout(90):
        first = await reader.readline()
    waited_s = time.monotonic() - began
    ready_s = await ready_at(cluster) - time.time() + time.monotonic() - began
    assert first == b"HTTP/1.1 200 OK\r\n"
    assert waited_s >= load_s
    assert waited_s - ready_s < 10.0, "1 s; a short part of the loading on a loaded machine"
    writer.close()
