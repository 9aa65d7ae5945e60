"""Requests that cannot be routed, models that are stopped, and what never reaches an engine."""

import asyncio
import gzip
import json
import uuid
import zlib
from typing import Any

import pytest
from aiohttp import web

from controller.store.core.database import Database
from controller.store.deployments.verbs import scale, stop
from support.database.ledger import add_deployment
from support.leading.models_floor import CHAT, LIMIT_S, Agent, Floor

JSON = b'{"model": "m"}'


@pytest.mark.parametrize(
    ("headers", "body", "status", "code"),
    [
        ({"Content-Encoding": "gzip"}, gzip.compress(JSON, mtime=0), 415, "unsupported_encoding"),
        ({"Content-Encoding": "gzip"}, gzip.compress(bytes(10_000_000), mtime=0), 415, "unsupported_encoding"),
        ({"Content-Encoding": "gzip"}, b"not gzip", 415, "unsupported_encoding"),
        ({"Content-Encoding": "deflate"}, zlib.compress(JSON), 415, "unsupported_encoding"),
        ({"Content-Encoding": "br, zstd"}, b"x", 415, "unsupported_encoding"),
        ({"Content-Encoding": "identity"}, JSON, 200, None),
        ({"Content-Type": "application/json; charset=latin-1"}, JSON, 400, "invalid"),
        ({"Content-Type": "application/json; charset=UTF-8"}, JSON, 200, None),
        ({}, b"\xef\xbb\xbf" + JSON, 400, "invalid"),
        ({}, b'{"model": "m", "model": "m"}', 400, "invalid"),
        ({}, b'{"model": "m", "x": NaN}', 400, "invalid"),
    ],
)
async def test_bodies_that_cannot_be_read_are_refused_with_a_word(
    headers: dict[str, str], body: bytes, status: int, code: str | None, floor: Floor
) -> None:
    agent = Agent()
    await floor.replicas(agent)
    got, answer = await floor.api.call("POST", CHAT, role="inference", data=body, headers=headers)
    assert (got, answer.get("error", {}).get("code")) == (status, code)
    assert len(agent.seen) == (status == 200), "no engine is asked"


async def test_errors_have_the_form_of_the_api_that_was_called(floor: Floor) -> None:
    await floor.replicas(Agent())
    status, body = await floor.api.call("POST", CHAT, role="inference", json={"model": 7})
    assert (status, set(body["error"])) == (400, {"message", "type", "code", "param", "details"})
    assert (body["error"]["type"], body["error"]["param"]) == ("invalid_request_error", "model")
    status, body = await floor.api.call("POST", "/v1/messages", role="inference", json={"model": "unknown"})
    assert (status, body["type"], body["error"]["type"]) == (404, "error", "not_found_error")
    assert body["request_id"]


async def stopped_by_policy(db: Database, uid: str, policy: str) -> None:
    async with db.transaction() as connection:
        await connection.execute(
            """insert into intents (deployment_uid, source, max_replicas, reason)
               values ($1, 'policy', 0, 'policy_idle')
               on conflict (deployment_uid, source) do nothing""",
            uuid.UUID(uid),
        )
        await connection.execute(
            """insert into policy_actions (policy, policy_generation, action, dry_run, deployment_uid, deployment,
                                           instances, gpus, evidence)
               values ($1, 1, 'stop', false, $2, 'm', '{}', 1, '{}')""",
            policy,
            uuid.UUID(uid),
        )


async def refused(floor: Floor, model: str) -> tuple[int, dict[str, Any], bool]:
    headers = floor.api.header("inference")
    async with floor.api.session.post(floor.api.url + CHAT, json={"model": model}, headers=headers) as got:
        helps = "Retry-After" in got.headers
        assert helps != (got.headers.get("x-should-retry") == "false"), "clients repeat other 503s by themselves"
        return got.status, (await got.json())["error"], helps


async def test_a_stopped_model_says_who_stopped_it_and_what_starts_it(floor: Floor, db: Database) -> None:
    uid = await add_deployment(db, "m")
    await stopped_by_policy(db, uid, "night")
    status, error, waiting_helps = await refused(floor, "m")
    assert (status, error["code"], waiting_helps) == (503, "stopped_by_policy", False)
    assert error["details"]["policy"] == "night"
    assert "night" in error["message"]
    assert "gpuward start m" in error["message"]
    await stop(db, "m")
    status, error, waiting_helps = await refused(floor, "m")
    assert (status, error["code"], waiting_helps) == (503, "stopped", False), "the user's stop lasts"
    assert "gpuward start m" in error["message"]
    await add_deployment(db, "none")
    await scale(db, "none", 0, 0)
    status, error, waiting_helps = await refused(floor, "none")
    assert (status, error["code"], waiting_helps) == (503, "stopped", False)
    assert "gpuward scale none 1" in error["message"]
    await add_deployment(db, "starting", serving={"queue": {"length": 0}})
    assert [(await refused(floor, "starting"))[i] for i in (0, 2)] == [503, True], "waiting may end this one"


async def test_no_key_and_no_cookie_reaches_an_engine(floor: Floor) -> None:
    agent = Agent()
    await floor.replicas(agent)
    key = floor.api.keys["inference"]
    secret = {"x-api-key": key, "Api-Key": key, "Cookie": f"session={key}", "Proxy-Authorization": f"Bearer {key}"}
    odd = {"Connection": "keep-alive, x-drop", "X-Drop": key, "TE": "trailers", "X-Gpuward-Refusal": "forged"}
    odd |= {"X-Forwarded-For": "1.2.3.4"}
    status, _ = await floor.api.call(
        "POST", CHAT, role="inference", data=JSON, headers=secret | odd | {"OpenAI-Beta": "assistants=v2"}
    )
    assert status == 200
    ((_, received, _),) = agent.seen
    assert key not in json.dumps(received)
    gone = {name.lower() for name in (*secret, *odd)} - {"connection"}
    assert not gone & {name.lower() for name in received}
    assert ("openai-beta", "assistants=v2") in {(k.lower(), v) for k, v in received.items()}, "all others pass"


async def test_no_stream_waits_in_a_hidden_queue(floor: Floor) -> None:
    """More streams to one replica than any default of a connection pool: all begin, and go on side by side."""
    count, release = 1_100, asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: begun\n\n")
        await release.wait()
        return response

    await floor.replicas(Agent(slow), serving={"max_in_flight": 2 * count})
    begun = 0

    async def one() -> bytes:
        nonlocal begun
        headers = floor.api.header("inference")
        async with floor.api.session.post(floor.api.url + CHAT, data=JSON, headers=headers) as got:
            first = await got.content.readuntil(b"\n\n")
            begun += 1
            if begun == count:
                release.set()
            return first + await got.content.read()

    floor.api.session.connector._limit = 0  # type: ignore[union-attr]  # this test's own client queues at 100
    async with asyncio.timeout(LIMIT_S * 3):
        answers = await asyncio.gather(*(one() for _ in range(count)))
    assert set(answers) == {b"data: begun\n\n"}
