"""The resources over HTTP: what each returns, and what each refuses."""

import asyncio
import io
import json
from typing import Any

import pytest
from aiohttp import web

from controller.store.core.database import Database
from support.database.ledger import GIB, add_deployment, add_host, add_instance, claim, report, rows
from support.leading.served_api import ServedApi, proxy

D = "/api/v1/deployments"


def spec(**fields: Any) -> dict[str, Any]:
    return {"engine": "simulated", **fields}


async def test_a_deployment_from_apply_to_delete(api: ServedApi) -> None:
    _, view = await api.call("PUT", f"{D}/a", json=spec())
    assert view["status"]["phase"] == "pending"
    status, scaled = await api.call("POST", f"{D}/a/scale", json={"replicas": 4}, headers={"If-Match": '"1"'})
    assert (status, scaled["generation"], scaled["spec"]["replicas"]) == (200, 2, 4)
    assert (await api.call("POST", f"{D}/a/stop"))[1]["status"]["wanted"] == 0
    assert (await api.call("POST", f"{D}/a/start"))[1]["status"]["wanted"] == 4
    assert (await api.call("DELETE", f"{D}/a"))[1]["status"]["phase"] == "deleting"
    assert (await api.get(D))["items"][0]["deleted_at"] is not None
    events = (await api.get("/api/v1/events?object=deployment/a"))["items"]
    assert [event["reason"] for event in events] == ["deleted", "started", "stopped", "scaled", "applied"]
    assert events == (await api.get(f"/api/v1/events?object=deployment:{view['uid']}"))["items"]
    assert (await api.get("/api/v1/events?reason=scaled"))["items"][0]["evidence"]["generation"] == 2


async def test_stop_and_start_refuse_another_generation(api: ServedApi) -> None:
    await api.call("PUT", f"{D}/a", json=spec(replicas=2))
    for verb in ("stop", "start"):
        status, answer = await api.call("POST", f"{D}/a/{verb}", headers={"If-Match": '"7"'})
        assert (status, answer["error"]["code"]) == (412, "generation_conflict")
    assert (await api.get(f"{D}/a"))["status"]["wanted"] == 2
    assert (await api.call("POST", f"{D}/a/stop", headers={"If-Match": '"1"'}))[1]["status"]["wanted"] == 0
    assert (await api.call("POST", f"{D}/a/start", headers={"If-Match": '"1"'}))[1]["status"]["wanted"] == 2


async def test_invalid_specs_name_field_and_fix(api: ServedApi) -> None:
    for body, code, path, part in (
        (spec(replcas=1), "invalid", "replcas", "did you mean 'replicas'?"),
        (spec(resources={"gpus": "x"}), "invalid", "resources.gpus", "a whole number"),
        (spec(name="b"), "invalid", "name", "in the path"),
        (spec(utilization_policy={}), "invalid", "utilization_policy.time_window", "is required"),
        (spec(runtime="docker"), "invalid", "image", "is required by engine simulated"),
        (spec(args={"load_second": 1}), "invalid", "args", "load_seconds"),
        ([], "invalid", "", "one JSON object"),
    ):
        status, answer = await api.call("PUT", f"{D}/a", json=body)
        assert (status, answer["error"]["code"]) == (400, code), answer
        found = {one["path"]: one["message"] for one in answer["error"]["details"]["problems"]}
        assert any(where.startswith(path) and part in message for where, message in found.items()), found
    assert (await api.get(D))["items"] == []


@pytest.mark.parametrize("body", [b"{", b"", b"\xff", b'{"engine": "simulated", "engine": "custom"}', b"[" * 10_000])
async def test_invalid_json_is_refused(api: ServedApi, body: bytes) -> None:
    status, answer = await api.call("PUT", f"{D}/a", data=body)
    assert (status, answer["error"]["code"]) == (400, "invalid")


async def test_bounds_on_bodies_and_parameters(api: ServedApi) -> None:
    async def refused(method: str, path: str, **options: Any) -> tuple[int, str]:
        status, answer = await api.call(method, path, **options)
        return status, answer["error"]["code"]

    async def endless() -> Any:
        for _ in range(40):
            yield b" " * 65536

    assert await refused("PUT", f"{D}/a", data=io.BytesIO(b" " * (2**20 + 1))) == (413, "too_large")
    assert await refused("PUT", f"{D}/a", data=endless()) == (413, "too_large"), "without a stated length"
    assert await refused("GET", f"{D}?limit=0") == (400, "invalid")
    assert await refused("GET", f"{D}?limit=1001") == (400, "invalid")
    assert await refused("GET", f"{D}?limit=ten") == (400, "invalid")
    assert await refused("GET", f"{D}?page=2") == (400, "invalid")
    assert await refused("GET", f"{D}?cursor=zzz") == (400, "invalid")
    assert await refused("GET", "/api/v1/events?object=a") == (400, "invalid")
    assert await refused("POST", f"{D}/none/scale", json={"replicas": -1}) == (400, "invalid")
    assert await refused("POST", "/api/v1/keys", json={"role": "root"}) == (400, "invalid")


async def test_every_response_carries_the_request_id(api: ServedApi) -> None:
    for path, given in (
        ("/healthz", "my-id"),
        ("/api/v1/none", "my-id"),
        ("/healthz", "no good\tid"),
        ("/healthz", ""),
    ):
        headers = {**api.header(), "X-Request-ID": given} if given else api.header()
        async with api.session.get(api.url + path, headers=headers) as answer:
            stamped = answer.headers["X-Request-ID"]
            assert stamped == given if given == "my-id" else len(stamped) == 16
            if answer.status != 200:
                assert (await answer.json())["error"]["details"]["request_id"] == stamped


async def test_workers_gpus_and_instances(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=2)
    uid = await add_deployment(db, "d")
    await add_instance(db, uid, "d-1", phase="running", epoch=1)
    await claim(db, "GPU-w-0", "d-1", GIB)
    assert (await api.get("/api/v1/instances/d-1"))["status"]["gpus"] == ["GPU-w-0"]
    assert [one["name"] for one in (await api.get("/api/v1/instances?deployment=d"))["items"]] == ["d-1"]
    assert (await api.get("/api/v1/instances?deployment=e"))["items"] == []
    assert (await api.get("/api/v1/gpus/GPU-w-0"))["status"]["claims"][0]["deployment"] == "d"
    assert len((await api.get("/api/v1/gpus?worker=w"))["items"]) == 2
    assert (await api.get("/api/v1/workers/w"))["status"]["state"] == "ready"
    for verb, state in (("cordon", "cordoned"), ("drain", "draining"), ("uncordon", "ready")):
        status, view = await api.call("POST", f"/api/v1/workers/w/{verb}", role="operator")
        assert (status, view["status"]["state"]) == (200, state)
    status, refusal = await api.call("DELETE", "/api/v1/workers/w")
    assert (status, refusal["error"]["code"]) == (409, "in_use")
    assert (await api.call("DELETE", "/api/v1/workers/w?confirm_dead=maybe"))[0] == 400
    assert (await api.call("DELETE", "/api/v1/workers/w?confirm_dead=true"))[0] == 204
    assert (await api.get("/api/v1/workers/w"))["status"]["state"] == "deleted"


async def test_keys_tokens_and_secrets(api: ServedApi, db: Database) -> None:
    status, made = await api.call("POST", "/api/v1/keys", json={"role": "viewer", "name": "ci"})
    assert status == 201
    assert made["key"].startswith("gpw_")
    listed = (await api.get("/api/v1/keys"))["items"]
    assert not any("key" in one for one in listed)
    assert (await api.call("DELETE", f"/api/v1/keys/{made['id']}"))[1]["revoked_at"] is not None
    assert (await api.call("DELETE", "/api/v1/keys/none"))[0] == 404
    status, token = await api.call("POST", "/api/v1/tokens")
    assert status == 201
    assert token["token"].startswith("gpj_")
    status, token = await api.call("POST", "/api/v1/tokens", json={"expires_s": "10m"})
    assert status == 201
    assert (await api.call("POST", "/api/v1/tokens", json={"expires_s": "90d"}))[0] == 400
    assert (await api.call("DELETE", f"/api/v1/tokens/{token['id']}"))[1]["revoked_at"] is not None
    assert not any("token" in one for one in (await api.get("/api/v1/tokens"))["items"])
    assert (await api.call("PUT", "/api/v1/secrets/hf", json={"value": "s3cret"}))[0] == 204
    assert (await api.call("GET", "/api/v1/secrets/hf"))[0] == 405, "never returned"
    assert await rows(db, "select name, value from secrets") == [{"name": "hf", "value": None}], "encrypted"
    assert (await api.call("DELETE", "/api/v1/secrets/hf"))[0] == 204
    assert (await api.call("DELETE", "/api/v1/secrets/hf"))[0] == 404


async def test_audit_and_leader(api: ServedApi, db: Database) -> None:
    assert (await api.get("/api/v1/audit"))["ok"] is True
    async with db.transaction() as connection:
        await connection.execute("update lease set term = 3, holder = 'me', renewed_at = now()")
    leader = await api.get("/api/v1/leader")
    assert (leader["holder"], leader["term"], leader["leading"]) == ("me", 3, True)
    await add_host(db, "w")
    async with db.transaction() as connection:
        await connection.execute("update devices set claims = 1 where uuid = 'GPU-w-0'")
    audit = await api.get("/api/v1/audit")
    assert audit["ok"] is False
    assert [one["invariant"] for one in audit["violations"]] == ["counters_match_claims"]


async def test_logs_are_streamed_from_the_worker(api: ServedApi, db: Database) -> None:
    seen: list[tuple[str, str, str | None]] = []
    second = asyncio.Event()

    async def agent(request: web.Request) -> web.StreamResponse:
        seen.append((request.path, request.query_string, request.headers.get("Authorization")))
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first\n")
        await second.wait()
        await response.write(b"second\n")
        return response

    host = await add_host(db, "w", gpus=1)
    uid = await add_deployment(db, "d")
    await add_instance(db, uid, "d-1", phase="running", epoch=1)
    await claim(db, f"host-{host.id}", "d-1", 0)
    await report(db, "d-1", "running")
    await add_instance(db, uid, "d-2")
    path = "/api/v1/instances/d-1/logs"
    status, body = await api.call("GET", path)
    assert (status, body["error"]["code"]) == (503, "worker_unreachable"), "no address yet"
    async with proxy(agent) as address:
        async with db.transaction() as connection:
            await connection.execute("update workers set proxy_address = $1", address)
        url = f"{api.url}{path}?tail=5&follow=true"
        async with api.session.get(url, headers=api.header("operator")) as answer:
            assert answer.status == 200
            assert await answer.content.readline() == b"first\n", "streamed before the log ends"
            second.set()
            assert await answer.content.read() == b"second\n"
    assert seen == [("/logs/d-1", "follow=1&tail=5", "Bearer s")]
    assert (await api.call("GET", path))[0] == 503
    assert (await api.call("GET", "/api/v1/instances/d-2/logs"))[0] == 409
    assert (await api.call("GET", "/api/v1/instances/none/logs"))[0] == 404
    assert (await api.call("GET", f"{path}?tail=-1"))[0] == 400


async def test_an_unavailable_database_is_reported(api: ServedApi, db: Database) -> None:
    await api.get(D)  # caches the key
    await db.close()
    status, body = await api.call("GET", D)
    assert (status, body["error"]["code"]) == (503, "database_unavailable")
    assert json.dumps(body).find("Traceback") < 0
