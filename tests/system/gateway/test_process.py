"""The gateway as a process of its own: it owns the public port, ends in order, and is back when it dies."""

import asyncio
import contextlib
import time
from statistics import median

import aiohttp
import psutil
import pytest

from schemas.wire import CREDENTIAL_HEADER, new_credential
from support.processes.cluster import Cluster
from support.processes.gateways import CHAT, Another, asked, with_a_model

STREAMS_END_S = 5.0


@pytest.mark.cases
async def test_a_gateway_that_dies_is_back_and_its_port_refuses_nothing(cluster: Cluster) -> None:
    await with_a_model(cluster)
    first = cluster.gateway()
    first.kill()
    await asyncio.to_thread(first.wait, 10)
    async with (
        aiohttp.ClientSession(cluster.url, headers=cluster.session.headers) as session,
        session.post(CHAT, json=asked("tokens=2")) as answer,
    ):
        assert answer.status == 200, f"{await answer.text()}: a new connection of meanwhile waits, and is served"
    assert cluster.gateway().pid != first.pid
    assert (await cluster.call("GET", "/workers"))[0] == 200
    await cluster.until(lambda: cluster.worker_is("gpu-1", "ready"), "the agent has dialed again")
    async with cluster.session.get("/readyz") as ready:
        checks = (await ready.json())["checks"]
    assert checks["gateway"] == {"ok": True, "message": ""}
    assert {"database", "leader"} <= checks.keys()
    async with cluster.session.get("/metrics") as metrics:
        text = await metrics.text()
    assert "gpuward_leader 1.0" in text
    assert "gpuward_gateway_bodies_in_flight_bytes 0.0" in text
    # A killed controller takes its gateway with it: the next one has the same port.
    second = cluster.gateway()
    cluster.kill("controller")
    await cluster.start_controller()
    assert not second.is_running() or second.status() == psutil.STATUS_ZOMBIE


async def back_after_s(cluster: Cluster) -> float:
    """Seconds from a SIGKILL of the serving process until a new connection is served again."""
    serving = cluster.gateway()
    began = time.monotonic()
    serving.kill()
    await asyncio.to_thread(psutil.wait_procs, [serving], 10)
    while True:
        with contextlib.suppress(aiohttp.ClientError):
            async with (
                aiohttp.ClientSession(cluster.url, headers=cluster.session.headers) as session,
                session.get("/v1/models") as answer,
            ):
                assert answer.status == 200, await answer.text()
                return time.monotonic() - began
        await asyncio.sleep(0.02)


@pytest.mark.cases
async def test_a_killed_gateway_is_back_within_a_second(cluster: Cluster) -> None:
    await cluster.start_controller()
    took = [await back_after_s(cluster) for _ in range(3)]
    assert median(took) < 3.0, f"1 s, and thrice that on a loaded machine: {took}"


@pytest.mark.cases
async def test_forwarded_headers_of_strangers_are_dropped_and_the_address_is_passed_on(cluster: Cluster) -> None:
    await cluster.start_controller()
    forged = {
        "X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "https", "X-Real-IP": "203.0.113.9",
        "Forwarded": "for=203.0.113.9", "X-Gpuward-Gateway": "x", "X-Gpuward-Behind-Proxy": "1",
    }  # fmt: skip
    token = (await cluster.post("/tokens", {}))["token"]
    chosen = {CREDENTIAL_HEADER: new_credential()}  # which an agent keeps, and sends through gateways
    body = {"token": token, "name": "w"}
    async with cluster.session.post("/api/v1/join", json=body, headers=forged | chosen) as joined:
        assert joined.status == 200, await joined.text()
        assert (await joined.json())["credential"] == chosen[CREDENTIAL_HEADER]
    log = (cluster.folder / "controller.log").read_text()
    assert "peer=127.0.0.1" in log
    assert "203.0.113.9" not in log


async def test_without_a_gateway_the_controller_serves_its_api_and_no_models(cluster: Cluster) -> None:
    await cluster.start_controller(GPUWARD_GATEWAY="false")
    assert not [
        one for one in psutil.Process(cluster.processes["controller"].pid).children() if "gateway" in one.cmdline()
    ]
    async with cluster.session.get("/v1/models") as answer:
        assert answer.status == 404
    assert (await cluster.call("GET", "/workers"))[0] == 200


@pytest.mark.cases
async def test_g20_two_gateways_know_of_a_revoked_key_within_a_second(cluster: Cluster) -> None:
    """An answer under way goes on to its end; streams of the API that pass through a gateway end with the key."""
    await with_a_model(cluster)
    other = Another(cluster)
    await cluster.until(other.is_ready, "the other gateway is ready", 60)
    made = await cluster.post("/keys", {"role": "admin"})
    headers = {"Authorization": f"Bearer {made['key']}"}
    urls = (cluster.url, other.url)

    async def refused(url: str) -> bool:
        async with aiohttp.ClientSession(headers=headers) as session, session.get(f"{url}/v1/models") as answer:
            return answer.status == 401

    async def until_its_end(url: str, path: str) -> float:
        """Opens a stream of the API; returns when it ended."""
        async with aiohttp.ClientSession(headers=headers) as session, session.get(f"{url}/api/v1{path}") as answer:
            assert answer.status == 200, await answer.text()
            opened.append(path)
            with contextlib.suppress(aiohttp.ClientPayloadError):
                async for _ in answer.content.iter_any():
                    pass
            return time.monotonic()

    for url in urls:
        assert not await refused(url)
    (instance,) = await cluster.instances("m")
    paths = ("/watch", f"/instances/{instance['name']}/logs?follow=true")
    opened: list[str] = []
    following = [asyncio.create_task(until_its_end(url, path)) for url in urls for path in paths]
    await cluster.until(lambda: len(opened) == len(following), "all streams are open")
    streaming = [asyncio.create_task(stream(url, made["key"])) for url in urls]
    await asyncio.sleep(1.0)
    assert not any(one.done() for one in following)
    revoked = time.monotonic()
    assert (await cluster.call("DELETE", f"/keys/{made['id']}"))[0] == 200
    for url in urls:
        await cluster.until(lambda url=url: refused(url), "the key is refused", 3.0)
    assert not any(one.done() for one in streaming)
    ends = await asyncio.wait_for(asyncio.gather(*following), 20)
    assert max(ends) - revoked <= STREAMS_END_S
    assert all(one.endswith(b"data: [DONE]\n\n") for one in await asyncio.gather(*streaming)), "goes on to its end"


async def stream(url: str, key: str) -> bytes:
    """A stream of eight seconds: its text."""
    sent = asked("tokens=80 token_seconds=0.1", stream=True)
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session,
        session.post(url + CHAT, json=sent) as answer,
    ):
        assert answer.status == 200
        return await answer.read()
