"""The gateway: the choice of the instance, unchanged bodies, and the end of an instance or a client."""

import asyncio
import gzip
import json
import time

import pytest
from aiohttp import web
from yarl import URL

from controller.store.core.database import Database
from schemas.wire import PROXY_REFUSAL_HEADER
from support.database.ledger import add_deployment
from support.leading.models_floor import CHAT, LIMIT_S, Agent, Floor


async def test_bodies_and_headers_pass_unchanged(floor: Floor, db: Database) -> None:
    packed = gzip.compress(b'{"object": "chat.completion"}')

    async def answer(_request: web.Request) -> web.StreamResponse:
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json", "X-Engine": "e", "Keep-Alive": "9"}
        return web.Response(body=packed, headers=headers)

    agent = Agent(answer)
    uid = await add_deployment(db, "m")
    await floor.run(uid, "m-1", await floor.worker("w", agent))
    await floor.served("m")
    body = b'{ "model":"m",   "messages": [], "big": 123456789012345678901234567890, "f": 1.10 }'
    headers = {
        **floor.api.header("inference"), "X-Mine": "yes", "Cookie": "a=b", "Connection": "x-drop", "X-Drop": "1",
        "Content-Type": "application/json; charset=utf-8", "Accept-Encoding": "gzip",
    }  # fmt: skip
    url = URL(f"{floor.api.url}{CHAT}?a=%20b", encoded=True)
    async with floor.api.session.post(url, data=body, headers=headers) as got:
        assert (got.status, got.headers["Content-Encoding"], got.headers["X-Engine"]) == (200, "gzip", "e")
        assert "Keep-Alive" not in got.headers
        assert int(got.headers["Content-Length"]) == len(packed)
        assert await got.read() == packed
    ((path, received, sent),) = agent.seen
    assert path == "/engines/m-1/v1/chat/completions?a=%20b"
    assert sent == body
    assert received["Authorization"] == "Bearer secret of w"
    assert floor.api.keys["inference"] not in json.dumps(received)
    assert received["X-Mine"] == "yes"
    assert received["Content-Type"] == "application/json; charset=utf-8"
    assert not {"Cookie", "X-Drop"} & received.keys()


async def test_tokens_are_streamed(floor: Floor, db: Database) -> None:
    step = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: one\n\n")
        await step.wait()
        await response.write(b"data: [DONE]\n\n")
        return response

    await floor.run(await add_deployment(db, "m"), "m-1", await floor.worker("w", Agent(answer)))
    await floor.served("m")
    call = floor.api.session.post(floor.api.url + CHAT, json={"model": "m"}, headers=floor.api.header("inference"))
    async with asyncio.timeout(LIMIT_S), call as got:
        assert await got.content.readuntil(b"\n\n") == b"data: one\n\n", "before the rest was made"
        step.set()
        assert await got.content.read() == b"data: [DONE]\n\n"


async def test_requests_go_to_the_least_busy_instance(floor: Floor, db: Database) -> None:
    held = asyncio.Event()
    release = asyncio.Event()

    async def hold_first(request: web.Request) -> web.StreamResponse:
        if request.path.split("/")[2] == "m-1":
            held.set()
            await release.wait()
        return web.json_response({"from": request.path.split("/")[2]})

    agent = Agent(hold_first)
    host = await floor.worker("w", agent)
    uid = await add_deployment(db, "m")
    for n in (1, 2):
        await floor.run(uid, f"m-{n}", host)
    await floor.served("m")
    waiting = [asyncio.create_task(floor.ask()) for _ in range(2)]
    async with asyncio.timeout(LIMIT_S):
        await held.wait()
        for _ in range(4):
            assert (await floor.ask())[1] == {"from": "m-2"}
        release.set()
        assert sorted(answer["from"] for _, answer in await asyncio.gather(*waiting)) == ["m-1", "m-2"]


async def test_unreachable_and_refusing_agents_are_skipped(floor: Floor, db: Database) -> None:
    async def refuse(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {}}, status=404, headers={PROXY_REFUSAL_HEADER: "not_found"})

    refusing, healthy = Agent(refuse), Agent()
    uid = await add_deployment(db, "m", serving={"queue": {"length": 0}})
    await floor.run(uid, "m-1", await floor.worker("unreachable"))
    await floor.run(uid, "m-2", await floor.worker("refusing", refusing))
    await floor.run(uid, "m-3", await floor.worker("healthy", healthy))
    await floor.served("m")
    for _ in range(6):
        assert await floor.ask() == (200, {"from": "m-3"})
    assert len(refusing.seen) == 1, "it is left alone for a second"
    healthy.answer = refuse
    before = len(healthy.seen)
    status, body = await floor.ask()
    assert (status, body["error"]["code"]) == (503, "model_not_running")
    assert "m-3" in body["error"]["details"]["tried"]
    assert len(healthy.seen) == before + 1, "each once"


async def test_g12_an_agent_that_stops_is_passed_over_and_its_clients_see_nothing_of_it(floor: Floor) -> None:
    async def stopping(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {}}, status=503, headers={PROXY_REFUSAL_HEADER: "stopping"})

    first, second = Agent(), Agent()
    await floor.replicas(first, second)
    for _ in range(4):
        assert (await floor.ask())[0] == 200
    assert len(first.seen) == len(second.seen) == 2
    first.answer = stopping
    began = time.monotonic()
    answers = [await floor.ask() for _ in range(10)]
    took_s = time.monotonic() - began
    assert {status for status, _ in answers} == {200}
    assert {body["from"] for _, body in answers} == {"m-2"}
    assert len(first.seen) == 3 or took_s > 1, "once, and not within the second after that"


@pytest.mark.parametrize("status", [400, 404, 502, 503])
async def test_an_engines_own_error_is_relayed(status: int, floor: Floor, db: Database) -> None:
    async def refuse(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "too long"}}, status=status)

    agent = Agent(refuse)
    await floor.run(await add_deployment(db, "m"), "m-1", await floor.worker("w", agent))
    await floor.served("m")
    assert await floor.ask() == (status, {"error": {"message": "too long"}})
    assert len(agent.seen) == 1


async def test_unknown_models_pending_models_and_invalid_requests(floor: Floor, db: Database) -> None:
    await add_deployment(db, "idle", serving={"queue": {"length": 0}})
    await floor.run(await add_deployment(db, "m"), "m-1", await floor.worker("w", Agent()))
    await floor.served("m")
    status, body = await floor.ask("unknown")
    assert (status, body["error"]["code"], body["error"]["type"]) == (404, "model_not_found", "invalid_request_error")
    headers = floor.api.header("inference")
    async with floor.api.session.post(floor.api.url + CHAT, json={"model": "idle"}, headers=headers) as got:
        assert got.status == 503
        assert int(got.headers["Retry-After"]) >= 1
        assert (await got.json())["error"]["code"] == "model_not_running"
    for data in (b"{", b"[]", b"{}", b'{"model": 5}', b""):
        status, body = await floor.api.call("POST", CHAT, role="inference", data=data)
        assert (status, body["error"]["code"]) == (400, "invalid"), data


async def test_a_new_instance_is_used_before_its_notification(floor: Floor, db: Database) -> None:
    host = await floor.worker("w", Agent())
    await floor.run(await add_deployment(db, "known"), "known-1", host)
    await floor.served("known")
    for name in ("first", "second"):
        await floor.run(await add_deployment(db, name), f"{name}-1", host)
        answers = await asyncio.gather(*(floor.ask(name) for _ in range(5)))
        assert {status for status, _ in answers} == {200}


async def test_an_instance_without_a_port_gets_no_requests(floor: Floor, db: Database) -> None:
    host = await floor.worker("w", Agent())
    await floor.run(await add_deployment(db, "task", engine="custom", command=["sleep", "9"]), "task-1", host)
    await floor.run(await add_deployment(db, "own", engine="custom", command=["serve", "{port}"]), "own-1", host)
    await floor.served("own")
    assert (await floor.ask("own"))[0] == 200
    assert (await floor.ask("task"))[0] == 503


async def test_a_spec_of_another_version_blocks_no_other_model(floor: Floor, db: Database) -> None:
    host = await floor.worker("w", Agent())
    await floor.run(await add_deployment(db, "odd"), "odd-1", host)
    await floor.run(await add_deployment(db, "m"), "m-1", host)
    async with db.transaction() as connection:
        await connection.execute(
            """update revisions set spec = spec || '{"engine": "of tomorrow"}'
                where deployment_uid = (select uid from deployments where name = 'odd')"""
        )
    await floor.served("m")
    assert (await floor.ask())[0] == 200


async def test_a_server_with_its_own_model_name_is_sent_that_name(floor: Floor, db: Database) -> None:
    agent = Agent()
    uid = await add_deployment(db, "m", engine="transformers", model="path:/models/tiny")
    await floor.run(uid, "m-1", await floor.worker("w", agent))
    await floor.served("m")
    assert (await floor.ask())[0] == 200
    assert json.loads(agent.seen[0][2]) == {"model": "/models/tiny", "messages": []}


async def test_a_client_that_disconnects_ends_its_upstream_request(floor: Floor, db: Database) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        begun.set()
        try:
            while True:
                await response.write(b"x")
                await asyncio.sleep(0.01)
        finally:
            ended.set()

    await floor.run(await add_deployment(db, "m"), "m-1", await floor.worker("w", Agent(endless)))
    await floor.served("m")
    async with asyncio.timeout(LIMIT_S):
        call = floor.api.session.post(floor.api.url + CHAT, json={"model": "m"}, headers=floor.api.header("inference"))
        async with call as got:
            await got.content.readexactly(1)
            await begun.wait()
        await ended.wait()


async def test_a_response_that_breaks_off_is_broken_for_the_client_too(floor: Floor, db: Database) -> None:
    async def die(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half")
        await asyncio.sleep(0.05)
        assert request.transport is not None
        request.transport.abort()
        return response

    await floor.run(await add_deployment(db, "m"), "m-1", await floor.worker("w", Agent(die)))
    await floor.served("m")
    with pytest.raises(Exception, match=r"(?i)payload|disconnected|reset|closed"):
        async with floor.api.session.post(
            floor.api.url + CHAT, json={"model": "m"}, headers=floor.api.header("inference")
        ) as got:
            await got.read()


async def test_without_the_database_the_last_table_stays_in_use(floor: Floor, db: Database) -> None:
    await add_deployment(db, "sleepy", replicas={"min": 0, "max": 1})
    await floor.run(await add_deployment(db, "m"), "m-1", await floor.worker("w", Agent()))
    await floor.served("m")
    assert (await floor.ask())[0] == 200
    await db.close()
    floor.api.changes.publish("status", "any")
    await asyncio.sleep(0.2)
    assert await floor.ask() == (200, {"from": "m-1"})
    began = time.monotonic()
    status, body = await floor.ask("sleepy")
    assert (status, body["error"]["code"]) == (503, "unavailable"), "G19: nothing can wake it now"
    assert time.monotonic() - began < 5, "1 s, and what a loaded machine takes"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_before_the_answer_ends_its_request_and_its_count(
    stream: bool, floor: Floor
) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def silent(request: web.Request) -> web.StreamResponse:
        if stream:
            await web.StreamResponse(headers={"Content-Type": "text/event-stream"}).prepare(request)
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return web.Response()

    await floor.replicas(Agent(silent))
    async with asyncio.timeout(LIMIT_S):
        asking = asyncio.create_task(floor.ask())
        await begun.wait()
        asking.cancel()
        await ended.wait()
        while floor.api.gateway.routes.table.in_flight("m-1"):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)


async def test_many_streams_closed_at_once_leave_no_request_behind(floor: Floor) -> None:
    open_now = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal open_now
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        open_now += 1
        try:
            while True:
                await response.write(b"data: x\n\n")
                await asyncio.sleep(0.2)
        finally:
            open_now -= 1

    await floor.replicas(Agent(endless))
    async with asyncio.timeout(LIMIT_S):
        call = floor.api.session.post
        header = floor.api.header("inference")
        got = await asyncio.gather(
            *(call(floor.api.url + CHAT, json={"model": "m"}, headers=header) for _ in range(80))
        )
        assert open_now == 80
        for one in got:
            one.close()
        while open_now or floor.api.gateway.routes.table.in_flight("m-1"):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
