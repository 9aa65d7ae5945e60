"""The way from the agent to an engine: nothing is repeated, and the agent marks what no engine has seen."""

import asyncio
import gzip
import time
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import aiohttp
import pytest

from schemas.wire import PROXY_IN_FLIGHT_HEADER, PROXY_OUTCOME_HEADER, PROXY_REFUSAL_HEADER
from support.processes.agents import AgentUnderTest
from support.standins.controller import SECRET, ControllerDouble, start_order

AUTH = {"Authorization": f"Bearer {SECRET}"}
# Answers with its client's port and with the requests so far; dies, hangs up or stops to listen when asked to.
ENGINE = r"""
import asyncio, gzip, sys
from aiohttp import web

seen = poured = 0
RAW = {
    "reason": b"HTTP/1.1 200 \x1b[31m\xff\r\n",
    "switch": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n",
    "beyond": b"HTTP/1.1 999 x\r\n",
}

async def handle(request):
    global seen, poured
    seen += 1
    what = request.match_info["what"]
    if what == "count":
        return web.Response(text=str(seen - 1))
    if what == "drop":
        request.transport.abort()
    if what == "die":
        await request.read()
        sys.stdout.flush()
        import os; os._exit(3)
    if what == "close":
        await site.stop()
    if what == "half":
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"x" * 300_000)
        await asyncio.sleep(0.05)
        request.transport.abort()
        return response
    if what == "hang":
        try:
            await asyncio.sleep(600)
        finally:
            print("cancelled", flush=True)
    if what == "poured":
        return web.Response(text=str(poured))
    if what == "pour":
        response = web.StreamResponse()
        await response.prepare(request)
        while poured < 40 * 2**20:
            await response.write(b"x" * 65536)
            poured += 65536
        return response
    if what in RAW:
        request.transport.write(RAW[what] + b"Content-Length: 2\r\n\r\n{}")
        request.transport.close()
    if what == "interim":
        while True:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 2000)
            await asyncio.sleep(0)
    if what == "busy":
        return web.Response(status=503, text="full")
    if what == "echo":
        headers = {"X-Gpuward-Outcome": "timed_out", "X-Gpuward-Refusal": "stopping", "X-GPUWARD-Later": "1"}
        headers["X-Gpuward-In-Flight"] = "99"
        headers["X-Encoding"] = str(request.headers.get("Content-Encoding"))
        return web.Response(body=await request.read(), headers=headers)
    return web.Response(text=str(request.transport.get_extra_info("peername")[1]))

async def main():
    global site
    app = web.Application()
    app.router.add_route("*", "/{what}", handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, auto_decompress=False, keepalive_timeout=5)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", int(sys.argv[1]), shutdown_timeout=0.1)
    await site.start()
    await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.fixture
async def base(controller: ControllerDouble, agent: AgentUnderTest) -> str:
    assert not agent.task.done()
    await controller.start_order("i-1", start_order("{python}", "-c", ENGINE, "{port}", port=True))
    await controller.state("i-1", "running")
    return f"http://127.0.0.1:{controller.hellos[0].proxy_port}/engines/i-1"


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(headers=AUTH, timeout=aiohttp.ClientTimeout(total=20)) as session:
        yield session


async def text(client: aiohttp.ClientSession, url: str) -> str:
    async with client.get(url) as answer:
        assert answer.status == 200
        return await answer.text()


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST"])
async def test_a_request_on_a_kept_connection_that_ends_is_not_repeated(
    method: str, base: str, client: aiohttp.ClientSession
) -> None:
    before = int(await text(client, f"{base}/count"))
    async with client.request(method, f"{base}/drop") as answer:
        assert (answer.status, answer.headers[PROXY_OUTCOME_HEADER]) == (502, "engine_died")
        assert PROXY_REFUSAL_HEADER not in answer.headers
        assert (await answer.json())["error"]["code"] == "engine_died"
    assert int(await text(client, f"{base}/count")) == before + 2, "the count itself, and the request once"


async def test_an_engine_that_dies_on_a_request_is_final_and_its_next_refusal_is_not(
    base: str, client: aiohttp.ClientSession
) -> None:
    async with client.post(f"{base}/die", data=b"x") as answer:
        assert (answer.status, answer.headers.get(PROXY_OUTCOME_HEADER)) == (502, "engine_died")
    await refused(base, client)


async def refused(base: str, client: aiohttp.ClientSession) -> None:
    """Waits for a marked refusal. While a process ends, its kernel may still accept a connection and drop it."""
    async with asyncio.timeout(20):
        while True:
            async with client.post(f"{base}/count", data=b"x") as answer:
                if PROXY_REFUSAL_HEADER in answer.headers:
                    assert answer.headers[PROXY_REFUSAL_HEADER] in {"engine_refused", "not_running"}
                    assert answer.status == 503
                    assert PROXY_OUTCOME_HEADER not in answer.headers
                    return
                assert answer.headers[PROXY_OUTCOME_HEADER] == "engine_died"
            await asyncio.sleep(0.05)


async def test_a_refused_connection_is_marked_as_a_refusal(base: str, client: aiohttp.ClientSession) -> None:
    await text(client, f"{base}/close")
    await asyncio.sleep(2.0)  # the kept connections are given up
    await refused(base, client)


async def test_an_engine_cannot_forge_our_marks_and_gets_encoded_bodies_as_they_came(
    base: str, client: aiohttp.ClientSession
) -> None:
    packed = gzip.compress(b"x" * 100)
    async with client.post(f"{base}/echo", data=packed, headers={"Content-Encoding": "gzip"}) as answer:
        ours = {name.lower(): value for name, value in answer.headers.items() if name.lower().startswith("x-gpuward-")}
        assert ours == {PROXY_IN_FLIGHT_HEADER.lower(): "1"}, "how many requests the instance has"
        assert answer.headers["X-Encoding"] == "gzip"
        assert await answer.read() == packed
    async with client.get(f"{base}/busy") as answer:
        assert (answer.status, await answer.text()) == (503, "full"), "an engine's own 503 has no mark"
        assert not {PROXY_REFUSAL_HEADER, PROXY_OUTCOME_HEADER} & set(answer.headers)


async def test_kept_connections_are_given_up_before_engines_close_them(
    base: str, client: aiohttp.ClientSession
) -> None:
    first, second = [await text(client, f"{base}/port") for _ in range(2)]
    assert first == second, "it is kept for a moment"
    await asyncio.sleep(1.8)  # less than the shortest keep-alive of any engine
    assert await text(client, f"{base}/port") != second


async def test_all_that_was_received_passes_before_the_cut(base: str) -> None:
    url = urlsplit(base)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write(f"GET {url.path}/half HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET}\r\n\r\n".encode())
    await asyncio.sleep(0.5)  # a reader that is behind
    async with asyncio.timeout(20):
        got = await reader.read(-1)
    writer.close()
    assert got.count(b"x") >= 300_000
    assert not got.endswith(b"0\r\n\r\n")


async def test_a_client_that_leaves_before_the_answer_ends_the_engines_request(
    base: str, client: aiohttp.ClientSession
) -> None:
    asking = asyncio.create_task(text(client, f"{base}/hang"))
    await asyncio.sleep(0.3)
    asking.cancel()
    began = time.monotonic()
    logs = base.replace("/engines/", "/logs/")
    while "cancelled" not in await text(client, logs):
        assert time.monotonic() - began < 10
        await asyncio.sleep(0.05)


async def test_the_engines_answer_tells_how_many_requests_the_instance_has(
    base: str, client: aiohttp.ClientSession
) -> None:
    hanging = [asyncio.create_task(text(client, f"{base}/hang")) for _ in range(3)]
    await asyncio.sleep(0.3)
    async with client.get(f"{base}/count") as answer:
        assert answer.headers[PROXY_IN_FLIGHT_HEADER] == "4"
    for one in hanging:
        one.cancel()
    await asyncio.sleep(0.2)
    async with client.get(f"{base}/count") as answer:
        assert answer.headers[PROXY_IN_FLIGHT_HEADER] == "1"


async def test_a_client_that_reads_nothing_holds_little(base: str) -> None:
    url = urlsplit(base)
    reader, writer = await asyncio.open_connection(url.hostname, url.port, limit=1024)
    writer.write(f"GET {url.path}/pour HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET}\r\n\r\n".encode())
    await reader.read(100)
    async with aiohttp.ClientSession(headers=AUTH) as asking:
        poured = [0]
        for _ in range(20):
            await asyncio.sleep(0.2)
            poured.append(int(await text(asking, f"{base}/poured")))
    writer.transport.abort()
    assert 0 < poured[-1] == poured[-5] < 15 * 2**20, "the kernel's buffers at both ends included"


async def test_a_reason_phrase_that_cannot_be_passed_on_is_dropped(base: str, client: aiohttp.ClientSession) -> None:
    async with client.get(f"{base}/reason") as answer:
        assert (answer.status, answer.reason, await answer.text()) == (200, "OK", "{}")


@pytest.mark.parametrize("what", ["switch", "beyond", "interim"])
async def test_an_answer_that_never_becomes_final_ends_its_request_alone(
    what: str, base: str, client: aiohttp.ClientSession
) -> None:
    async with asyncio.timeout(10), client.post(f"{base}/{what}", data=b"x") as answer:
        assert (answer.status, answer.headers.get(PROXY_OUTCOME_HEADER)) == (502, "engine_died")
    assert await text(client, f"{base}/count"), "agent and engine go on"
