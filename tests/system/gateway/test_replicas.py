"""Which replica gets a request, and what its client gets when an engine refuses, dies or falls silent."""

import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.processes.cluster import Cluster
from support.processes.gateways import Another
from support.processes.served_models import CHAT, counters, listed, serve

pytestmark = [pytest.mark.cases, pytest.mark.timeout(300)]
MESSAGES = "/v1/messages"


class Journal:
    """What the engines noted of requests: words by the request's name."""

    def __init__(self, path: Path) -> None:
        self.env = {"SIMULATED_ENGINE_JOURNAL": str(path)}
        self._path = path

    def of(self, name: str) -> Counter[str]:
        lines = [line.split() for line in self._path.read_text().splitlines()]
        return Counter(line[0] for line in lines if line[1] == name)


async def ask(cluster: Cluster, told: str, path: str = CHAT, url: str = "", **fields: Any) -> tuple[int, Any, bytes]:
    """Status, headers, and what came of the body; a cut connection leaves `(cut)` behind it."""
    headers = fields.pop("headers", {})
    body = {
        "model": "chat",
        "messages": [{"role": "user", "content": f"[simulate {told}]"}],
        "max_tokens": 50,
        **fields,
    }
    async with cluster.session.post((url or cluster.url) + path, json=body, headers=headers) as answer:
        content = b""
        try:
            async for piece in answer.content.iter_any():
                content += piece
        except aiohttp.ClientPayloadError:
            content += b"(cut)"
        return answer.status, answer.headers, content


async def test_g13_to_g16_a_request_runs_once_and_its_client_is_told(cluster: Cluster, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    serving = {"first_token_timeout": "4s", "queue": {"length": 0}}
    await serve(cluster, chat={"replicas": 3, "env": journal.env, "serving": serving})
    await listed(cluster, "chat")
    await all_are_known(cluster, "chat")
    await engines_refuse(cluster, journal)
    await an_engine_is_silent(cluster, journal)
    await an_engine_dies_in_mid_stream(cluster, journal)
    await an_engine_dies_before_the_first_byte(cluster, journal)


async def all_are_known(cluster: Cluster, name: str) -> None:
    """Waits until the gateway knows all replicas: requests go to each in turn then."""

    async def all_are_asked() -> bool:
        await ask(cluster, "tokens=1", model=name)
        return all(engine["taken"] for engine in await counters(cluster, name))

    await cluster.until(all_are_asked, f"the gateway knows all replicas of {name}")


async def engines_refuse(cluster: Cluster, journal: Journal) -> None:
    """G13: a 503 goes to each replica once, any other error is the answer."""
    for status in (500, 400, 429):
        found, _, content = await ask(cluster, f"id=r{status} refuse={status}")
        assert (found, json.loads(content)["error"]["message"]) == (status, "the engine was told to refuse")
        assert journal.of(f"r{status}") == {"refused": 1}, "at once, from one"
    found, headers, content = await ask(cluster, "id=busy refuse=503")
    assert (found, json.loads(content)["error"]["message"]) == (503, "the engine was told to refuse")
    assert "Retry-After" in headers
    assert journal.of("busy") == {"refused": 3}

    async def answers() -> bool:
        return (await ask(cluster, "tokens=1"))[0] == 200

    await cluster.until(answers, "those that refused are asked again after 1 s")


async def an_engine_is_silent(cluster: Cluster, journal: Journal) -> None:
    """G15."""
    began = time.monotonic()
    status, headers, content = await ask(cluster, "id=silent silent")
    assert (status, json.loads(content)["error"]["code"], headers["x-should-retry"]) == (504, "timed_out", "false")
    assert 3.9 < time.monotonic() - began < 10
    await cluster.until(
        lambda: journal.of("silent") == {"taken": 1, "cancelled": 1}, "one saw it, and it was cancelled"
    )


async def an_engine_dies_in_mid_stream(cluster: Cluster, journal: Journal) -> None:
    """G16, in OpenAI's form and in Anthropic's."""
    status, _, content = await ask(cluster, "id=five tokens=20 token_seconds=0.02 die=5", stream=True)
    *events, error, cut = content.split(b"\n\n")
    assert (status, len(events), cut) == (200, 5, b"(cut)")
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "engine_died"
    assert b"[DONE]" not in content
    assert journal.of("five") == {"taken": 1}
    status, _, content = await ask(cluster, "id=six tokens=20 token_seconds=0.02 die=5", MESSAGES, stream=True)
    assert (status, content.endswith(b"(cut)"), b"message_stop" in content) == (200, True, False)
    last = content.removesuffix(b"(cut)").rstrip().split(b"\n\n")[-1].split(b"\n")
    assert last[0] == b"event: error"
    assert json.loads(last[1].removeprefix(b"data: "))["type"] == "error"


async def an_engine_dies_before_the_first_byte(cluster: Cluster, journal: Journal) -> None:
    """G14."""

    async def three_run() -> bool:
        return len(cluster.engines()) == 3 and await cluster.phases("chat") == ["running"] * 3

    await cluster.until(three_run, "those that died run again", 90)
    status, headers, content = await ask(cluster, "id=deadly die")
    assert (status, json.loads(content)["error"]["code"], headers["x-should-retry"]) == (502, "engine_died", "false")
    assert journal.of("deadly") == {"taken": 1}, "one engine saw it"
    assert len(cluster.engines()) >= 2, "two still run"


async def test_g22_g26_load_is_spread_and_sessions_stay(cluster: Cluster, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    await serve(
        cluster,
        chat={"replicas": 3, "serving": {"max_in_flight": 64}},
        talk={"replicas": 3, "serving": {"routing": "session", "max_in_flight": 2}, "env": journal.env},
    )
    await listed(cluster, "chat", "talk")
    for name in ("chat", "talk"):
        await all_are_known(cluster, name)
    before = [engine["taken"] for engine in await counters(cluster, "chat")]
    slots = asyncio.Semaphore(30)

    async def one() -> int:
        async with slots:
            return (await ask(cluster, "tokens=1 wait=0.2"))[0]

    assert await asyncio.gather(*(one() for _ in range(300))) == [200] * 300
    engines = await counters(cluster, "chat")
    taken_by = [engine["taken"] - then for engine, then in zip(engines, before, strict=True)]
    assert all(94 <= taken <= 106 for taken in taken_by), taken_by
    assert max(engine["most_running"] for engine in engines) <= 11
    other = Another(cluster)
    await cluster.until(other.is_ready, "the other gateway serves")

    async def taken() -> list[int]:
        return [engine["taken"] for engine in await counters(cluster, "talk")]

    for session in ("a", "b", "c", "d"):
        before = await taken()
        for n in range(6):
            url = other.url if n % 2 else ""
            status, _, _ = await ask(cluster, "tokens=1", url=url, model="talk", headers={"x-session-id": session})
            assert status == 200
        moved = [now - then for now, then in zip(await taken(), before, strict=True)]
        assert sorted(moved) == [0, 0, 6], "one replica, from both gateways"
    before = await taken()
    told, header = "tokens=1 wait=1.5", {"x-session-id": "a"}
    busy = [asyncio.create_task(ask(cluster, told, model="talk", headers=header)) for _ in range(3)]
    assert [status for status, _, _ in await asyncio.gather(*busy)] == [200] * 3
    assert sorted(now - then for now, then in zip(await taken(), before, strict=True)) == [0, 1, 2], "at its limit"


async def test_g12_a_worker_that_refuses_connections_costs_no_request(cluster: Cluster) -> None:
    await cluster.start_controller()
    for name in ("gpu-1", "gpu-2"):
        await cluster.start_agent(name, gpus=1)
    await cluster.apply("chat", replicas=2, resources={"gpus": 1})
    await cluster.running("chat")
    await listed(cluster, "chat")
    assert {(await ask(cluster, "tokens=1"))[0] for _ in range(4)} == {200}
    cluster.kill("gpu-2")
    began, statuses = time.monotonic(), Counter[int]()
    while time.monotonic() - began < 8:
        statuses[(await ask(cluster, "tokens=1"))[0]] += 1
    assert set(statuses) == {200}, "the other one answers, and the client sees nothing of it"
    async with cluster.session.get("/metrics") as answer:
        text = await answer.text()
    retries = [line for line in text.splitlines() if line.startswith("gpuward_gateway_retries_total{")]
    tried = sum(float(line.split()[-1]) for line in retries if 'reason="not_connected"' in line)
    assert 1 <= tried <= 5, "it is asked again after 1 s, then 2, then 4"


async def test_g12_an_agent_that_stops_passes_its_requests_on_and_gets_no_more(cluster: Cluster) -> None:
    await cluster.start_controller()
    for name in ("gpu-1", "gpu-2"):
        await cluster.start_agent(name, gpus=1)
    await cluster.apply("chat", replicas=2, resources={"gpus": 1}, drain_time="20s")
    await cluster.running("chat")
    await listed(cluster, "chat")
    assert {(await ask(cluster, "tokens=1"))[0] for _ in range(4)} == {200}
    over, statuses = asyncio.Event(), Counter[int]()

    async def load() -> None:
        while not over.is_set():
            statuses[(await ask(cluster, "tokens=1 wait=0.2"))[0]] += 1

    loading = [asyncio.create_task(load()) for _ in range(4)]
    await asyncio.sleep(1)
    process = cluster.processes.pop("gpu-2")
    process.terminate()
    assert await asyncio.to_thread(process.wait, 40) == 0
    await asyncio.sleep(3)
    over.set()
    await asyncio.gather(*loading)
    assert set(statuses) == {200}, "the client sees nothing of it"
