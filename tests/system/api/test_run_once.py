"""A request runs once: it goes to another replica only where no engine can have seen it."""

import asyncio
import io
from typing import Any

import pytest
from aiohttp import web
from multidict import CIMultiDict

from schemas.wire import PROXY_OUTCOME_HEADER, PROXY_REFUSAL_HEADER
from support.leading.models_floor import CHAT, Agent, Floor


async def died(_: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {}}, status=502, headers={PROXY_OUTCOME_HEADER: "engine_died"})


async def timed_out(_: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {}}, status=504, headers={PROXY_OUTCOME_HEADER: "timed_out"})


async def older_agents_mark(_: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {}}, status=502, headers={PROXY_REFUSAL_HEADER: "engine_unreachable"})


async def drop(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def switch_protocols(_: web.Request) -> web.StreamResponse:
    return web.Response(status=101)


async def headers_then_drop(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return await drop(request)


async def post(floor: Floor, **options: Any) -> tuple[int, CIMultiDict[str], Any]:
    body = options.pop("json", {"model": "m", "messages": []})
    headers = floor.api.header("inference")
    async with floor.api.session.post(floor.api.url + CHAT, json=body, headers=headers, **options) as got:
        return got.status, CIMultiDict(got.headers), await got.json()


@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        (died, 502, "engine_died"),
        (timed_out, 504, "timed_out"),
        (older_agents_mark, 502, "engine_died"),
        (drop, 502, "engine_died"),
        (switch_protocols, 502, "engine_died"),
        (headers_then_drop, 502, "engine_died"),
    ],
)
async def test_a_request_that_an_engine_may_have_seen_goes_nowhere_else(
    answer: Any, status: int, code: str, floor: Floor
) -> None:
    agents = [Agent(answer) for _ in range(3)]
    await floor.replicas(*agents)
    got, headers, body = await post(floor)
    assert (got, body["error"]["code"]) == (status, code)
    assert headers["x-should-retry"] == "false"
    assert "Retry-After" not in headers
    assert set(body["error"]) == {"message", "type", "code", "param", "details"}
    assert sum(len(agent.seen) for agent in agents) == 1, "one engine saw it"


async def test_a_silent_engine_is_given_up_once_and_its_request_cancelled(floor: Floor) -> None:
    cancelled = asyncio.Event()

    async def silent(_: web.Request) -> web.StreamResponse:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
        return web.Response()

    agents = [Agent(silent) for _ in range(3)]
    await floor.replicas(*agents, serving={"first_token_timeout": 0.5})
    status, headers, body = await post(floor)
    assert (status, body["error"]["code"], headers["x-should-retry"]) == (504, "timed_out", "false")
    assert sum(len(agent.seen) for agent in agents) == 1
    async with asyncio.timeout(5):
        await cancelled.wait()


@pytest.mark.parametrize("code", ["not_running", "stopping", "engine_refused", "overloaded"])
async def test_a_refusal_before_the_first_byte_is_not_seen_by_the_client(code: str, floor: Floor) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.json_response({}, status=503, headers={PROXY_REFUSAL_HEADER: code})

    refusing, healthy = Agent(refuse), Agent()
    await floor.replicas(None, refusing, healthy)
    for _ in range(6):
        assert (await post(floor))[2] == {"from": "m-3"}
    assert len(refusing.seen) == 1, "it is left alone for a while"


async def test_a_large_body_reaches_the_next_replica_whole(floor: Floor) -> None:
    class Unread(Agent):
        async def handle(self, request: web.Request) -> web.StreamResponse:
            assert request.content_length
            response = web.json_response({}, status=503, headers={PROXY_REFUSAL_HEADER: "stopping"})
            response.force_close()
            return response

    agent = Agent()
    await floor.replicas(Unread(), agent)
    body = b'{"model": "m", "messages": ["%b"]}' % (b"x" * 20_000_000)
    for _ in range(2):
        assert (await post(floor, json=None, data=io.BytesIO(body)))[2] == {"from": "m-2"}
    assert all(sent == body for _, _, sent in agent.seen)


async def test_an_engines_own_503_sends_the_request_on(floor: Floor) -> None:
    async def busy(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "full"}}, status=503, headers={"X-Engine": "e"})

    full, free = Agent(busy), Agent()
    await floor.replicas(full, free)
    assert {(await post(floor))[0] for _ in range(4)} == {200}
    assert len(full.seen) == 1
    free.answer = busy
    status, headers, body = await post(floor)
    assert (status, body) == (503, {"error": {"message": "full"}}), "the engine's own answer, where no other is"
    assert (headers["X-Engine"], headers["Retry-After"]) == ("e", "1")


@pytest.mark.parametrize("status", [400, 429, 500, 502, 504])
async def test_other_errors_of_an_engine_are_the_answer(status: int, floor: Floor) -> None:
    async def fail(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no"}}, status=status)

    agents = [Agent(fail) for _ in range(3)]
    await floor.replicas(*agents)
    for count in (1, 2, 3):
        assert (await post(floor))[0] == status
        assert sum(len(agent.seen) for agent in agents) == count
    assert {len(agent.seen) for agent in agents} == {1}, "it counts nothing against the replica"
