"""The proxy: authentication, routing, and bytes that pass unchanged."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from msgspec.structs import replace

from schemas.wire import PROXY_REFUSAL_HEADER, ModelFetch, NewCredential
from support.processes.agents import GPU0, AgentUnderTest
from support.standins.controller import SECRET, WAIT_S, ControllerDouble, rig_order, simulated_order, start_order

AUTH = {"Authorization": f"Bearer {SECRET}"}
# Echoes requests, streams chunks, and logs when its client has gone.
ENGINE = """
import asyncio, sys
from aiohttp import web

async def echo(request):
    body = await request.read()
    auth, te = request.headers.get("Authorization"), request.headers.get("TE")
    head = f"{request.method} {request.raw_path} auth={auth} te={te}"
    headers = {"X-EngineProcess": "yes", "Content-Type": "application/x-odd", "X-Gpuward-Refusal": "forged"}
    return web.Response(body=head.encode() + b"|" + body, headers=headers)

async def stream(request):
    response = web.StreamResponse(headers={"Content-Encoding": "gzip"})
    await response.prepare(request)
    try:
        for chunk in (b"\\x1f\\x8bnot", b"really", b"gzip"):
            await response.write(chunk)
            await asyncio.sleep(0.05)
    finally:
        print("stream over", flush=True)
    return response

async def endless(request):
    response = web.StreamResponse()
    await response.prepare(request)
    try:
        while True:
            await response.write(b"tick")
            await asyncio.sleep(0.02)
    finally:
        print("endless cancelled", flush=True)

async def cut(request):
    response = web.StreamResponse(headers={"Content-Length": "100"})
    await response.prepare(request)
    await response.write(b"half")
    request.transport.close()
    return response

app = web.Application()
app.router.add_get("/stream", stream)
app.router.add_get("/endless", endless)
app.router.add_get("/cut", cut)
app.router.add_route("*", "/{path:.*}", echo)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), handler_cancellation=True, print=None, access_log=None)
"""


@pytest.fixture
async def base(controller: ControllerDouble, agent: AgentUnderTest) -> str:
    assert not agent.task.done()
    await controller.start_order("i-1", start_order("{python}", "-c", ENGINE, "{port}", port=True))
    await controller.state("i-1", "running")
    return f"http://127.0.0.1:{controller.hellos[0].proxy_port}"


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(auto_decompress=False, timeout=aiohttp.ClientTimeout(total=20)) as session:
        yield session


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("given", [None, "Bearer wrong", SECRET, "Bearer \xff"])
@pytest.mark.parametrize("path", ["/engines/i-1/v1/models", "/logs/i-1", "/nowhere"])
async def test_requests_without_the_secret_are_refused(
    given: str | None, path: str, controller: ControllerDouble, client: aiohttp.ClientSession
) -> None:
    headers = {} if given is None else {"Authorization": given}
    async with client.get(f"http://127.0.0.1:{controller.hellos[0].proxy_port}{path}", headers=headers) as answer:
        assert answer.status == 401


async def test_readiness_follows_the_connection_and_needs_no_secret(
    agent: AgentUnderTest, controller: ControllerDouble, client: aiohttp.ClientSession
) -> None:
    base = f"http://127.0.0.1:{controller.hellos[0].proxy_port}"

    async def answers(status: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while True:
                async with client.get(f"{base}/readyz") as answer:
                    if answer.status == status:
                        assert await answer.json() == {"ready": status == 200}
                        return
                await asyncio.sleep(0.02)

    assert agent.ready.is_set()
    await answers(200)
    await controller.stop()
    await answers(503)
    async with client.get(f"{base}/healthz") as answer:
        assert (answer.status, await answer.json()) == (200, {"status": "ok"}), "it lives without a controller"
    await controller.start()
    await answers(200)
    for path in ("/readyz/more", "/healthz/more"):
        async with client.get(base + path) as answer:
            assert answer.status == 401


async def test_requests_and_answers_pass_unchanged(base: str, client: aiohttp.ClientSession) -> None:
    body = bytes(range(256)) * 3000
    async with client.put(
        f"{base}/engines/i-1/a%2Fb/%C3%A4?q=1&q=%20x", data=body, headers={**AUTH, "TE": "trailers"}
    ) as answer:
        assert answer.status == 200
        assert (answer.headers["X-EngineProcess"], answer.headers["Content-Type"]) == ("yes", "application/x-odd")
        assert PROXY_REFUSAL_HEADER not in answer.headers, "an engine's answer must not carry it"
        head, _, echoed = (await answer.read()).partition(b"|")
    assert head == b"PUT /a%2Fb/%C3%A4?q=1&q=%20x auth=None te=None"
    assert echoed == body


async def test_streams_pass_chunk_by_chunk_and_undecoded(base: str, client: aiohttp.ClientSession) -> None:
    async with client.get(f"{base}/engines/i-1/stream", headers=AUTH) as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
        first = await answer.content.readany()
        assert first == b"\x1f\x8bnot"
        assert first + await answer.read() == b"\x1f\x8bnotreallygzip"


async def test_the_engine_notices_that_the_client_has_gone(base: str, client: aiohttp.ClientSession) -> None:
    answer = await client.get(f"{base}/engines/i-1/endless", headers=AUTH)
    await answer.content.readany()
    answer.close()
    async with asyncio.timeout(10):
        while "endless cancelled" not in await _log(base, client):  # noqa: ASYNC110 - the log has no event
            await asyncio.sleep(0.05)


async def test_an_incomplete_answer_breaks_the_connection(base: str, client: aiohttp.ClientSession) -> None:
    with pytest.raises(aiohttp.ClientError):
        async with client.get(f"{base}/engines/i-1/cut", headers=AUTH) as answer:
            await answer.read()


async def test_unknown_and_not_running_instances_are_refused(
    base: str, client: aiohttp.ClientSession, controller: ControllerDouble
) -> None:
    async with client.get(f"{base}/engines/i-9/", headers=AUTH) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (404, "not_found")
        assert answer.headers[PROXY_REFUSAL_HEADER] == "not_found"
    await controller.start_order("i-2", simulated_order("--load-seconds", "600"))
    await controller.state("i-2", "starting")
    async with client.get(f"{base}/engines/i-2/health", headers=AUTH) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (503, "not_running")
        assert answer.headers[PROXY_REFUSAL_HEADER] == "not_running"


async def test_an_instance_whose_model_is_fetched_is_known(
    base: str, client: aiohttp.ClientSession, controller: ControllerDouble
) -> None:
    order = replace(simulated_order(), fetches=(ModelFetch(repo="org/none", revision=".."),))
    ordered = await controller.start_order("i-4", order)
    async with client.get(f"{base}/engines/i-4/health", headers=AUTH) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (503, "not_running"), ordered
    exited = await controller.state("i-4", "exited")
    assert exited.reason == "spawn_failed"
    assert "hf:org/none" in exited.message


async def test_a_stop_finishes_requests_in_flight_and_refuses_new_ones(
    base: str, client: aiohttp.ClientSession, controller: ControllerDouble
) -> None:
    await controller.start_order("i-3", rig_order("--token-seconds", "0.05", gpus=(GPU0,), drain_time_s=20.0))
    await controller.state("i-3", "running")
    body = {"model": "demo", "prompt": "hello", "max_tokens": 20, "stream": True}
    async with client.post(f"{base}/engines/i-3/v1/completions", json=body, headers=AUTH) as answer:
        await answer.content.readany()
        await controller.stop_order("i-3", drain_s=20.0)
        await controller.state("i-3", "stopping")
        async with client.get(f"{base}/engines/i-3/health", headers=AUTH) as late:
            assert late.status == 503
        assert (await answer.read()).endswith(b"data: [DONE]\n\n")
    ended = await controller.state("i-3", "exited")
    assert (ended.reason, ended.exit_code) == ("stopped", 0)


async def test_a_stop_waits_for_requests_only_for_the_drain_time(
    base: str, client: aiohttp.ClientSession, controller: ControllerDouble
) -> None:
    async with client.get(f"{base}/engines/i-1/endless", headers=AUTH) as answer:
        await answer.content.readany()
        await controller.stop_order("i-1", drain_s=1.0)
        assert (await controller.state("i-1", "exited")).reason == "stopped"


async def test_logs_tail_follow_and_previous(
    base: str, client: aiohttp.ClientSession, controller: ControllerDouble
) -> None:
    first = "for i in 1 2 3; do echo first $i; done"
    await controller.start_order("i-4", start_order("sh", "-c", first))
    await controller.state("i-4", "exited")
    ended = await _log(base, client, "i-4", previous="1", tail="1")
    assert ended == "first 3\n", "between two starts it is the one that has just ended"
    second = "echo second; while [ ! -e go ]; do sleep 0.05; done; echo last words"
    await controller.start_order("i-4", start_order("sh", "-c", second), epoch=2)
    await controller.state("i-4", "running", epoch=2)
    assert await _log(base, client, "i-4", previous="1", tail="2") == "first 2\nfirst 3\n"
    async with client.get(f"{base}/logs/i-4", params={"follow": "1"}, headers=AUTH) as answer:
        assert await answer.content.readany() == b"second\n"
        await controller.order(instance="i-5", epoch=1, verb="start", start=start_order("touch", "../../i-4/work/go"))
        assert await answer.read() == b"last words\n"
    assert (await controller.state("i-4", "exited", epoch=2)).exit_code == 0
    async with client.get(f"{base}/logs/i-4", params={"tail": "x"}, headers=AUTH) as answer:
        assert answer.status == 400
    for unknown in ("i-9", "%2e%2e", "..%2f..%2fdata"):
        async with client.get(f"{base}/logs/{unknown}", headers=AUTH) as answer:
            assert answer.status == 404


@pytest.fixture
def few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.engine_proxy.proxy.connection_bound", lambda _files: 32)


@pytest.mark.usefixtures("few_connections", "agent")
async def test_logs_are_read_however_many_requests_its_engines_have(base: str, client: aiohttp.ClientSession) -> None:
    answers = [await client.get(f"{base}/engines/i-1/endless", headers=AUTH) for _ in range(40)]
    assert {answer.status for answer in answers} == {200, 503}
    await _log(base, client)
    for answer in answers:
        answer.close()


async def _log(base: str, client: aiohttp.ClientSession, instance: str = "i-1", **params: str) -> str:
    async with client.get(f"{base}/logs/{instance}", params=params, headers=AUTH) as answer:
        assert answer.status == 200
        return await answer.text()


async def test_its_secret_changes_under_a_stream_and_the_one_before_is_valid_for_a_while(
    controller: ControllerDouble, base: str, client: aiohttp.ClientSession
) -> None:
    async def status(secret: str) -> int:
        async with client.get(f"{base}/engines/i-1/x", headers={"Authorization": f"Bearer {secret}"}) as answer:
            return answer.status

    controller.credentials.add("next")
    async with client.get(f"{base}/engines/i-1/endless", headers=AUTH) as stream:
        assert await stream.content.readexactly(4) == b"tick"
        assert await status("new") == 401
        hellos = len(controller.hellos)
        assert controller.hellos[-1].takes_proxy_secrets
        controller.proxy_secret = "new"
        await controller.send(NewCredential(credential="next", proxy_secret="new"))
        await controller.connected(hellos + 1)
        assert [await status(one) for one in ("new", SECRET, "other")] == [200, 200, 401]
        assert await stream.content.readexactly(4) == b"tick"
