"""How answers travel: compressed where the client takes it, not at all where it has them; through the gateway too."""

import asyncio
import gzip
import json
from collections.abc import Mapping

import aiohttp
import pytest

from controller.api import body as representation
from controller.api.app import all_routes
from controller.api.route import Access
from controller.store.core.database import Database
from support.database.ledger import add_deployment, add_host, add_instance
from support.leading.served_api import ServedApi

LIST = "/api/v1/deployments"


@pytest.fixture
async def many(db: Database) -> Database:
    for n in range(20):
        await add_deployment(db, f"chat-{n}", resources={"gpus": 1})
    return db


async def get(
    api: ServedApi, path: str, *, method: str = "GET", **headers: str
) -> tuple[int, Mapping[str, str], bytes]:
    """Status, headers and bytes as they travel."""
    named = {name.replace("_", "-"): value for name, value in headers.items()} | api.header()
    async with api.session.request(method, api.url + path, headers=named) as answer:
        return answer.status, answer.headers, await answer.read()


@pytest.mark.usefixtures("many")
async def test_a_long_answer_is_compressed_for_a_client_that_takes_it(api: ServedApi) -> None:
    _, plain_headers, plain = await get(api, LIST)
    status, headers, packed = await get(api, LIST, Accept_Encoding="br, gzip;q=0.5")
    assert (status, headers["Content-Encoding"], "Content-Encoding" in plain_headers) == (200, "gzip", False)
    assert len(packed) == int(headers["Content-Length"]) < len(plain) / 4
    assert gzip.decompress(packed) == plain
    assert plain_headers["Vary"] == headers["Vary"] == "Accept-Encoding"
    assert headers["Cache-Control"] == "private, no-cache"
    _, headers, _ = await get(api, LIST, Accept_Encoding="gzip;q=0")
    assert "Content-Encoding" not in headers
    _, headers, _ = await get(api, "/api/v1/me", Accept_Encoding="gzip")
    assert "Content-Encoding" not in headers, "a short one"


async def test_what_a_client_has_does_not_travel_again(api: ServedApi, many: Database) -> None:
    _, headers, _ = await get(api, LIST)
    tag = headers["ETag"]
    assert tag.startswith('W/"')
    for encoding in ("gzip", "identity"):
        for known in (tag, tag.removeprefix("W/"), f'"other", {tag}', "*"):
            status, headers, body = await get(api, LIST, If_None_Match=known, Accept_Encoding=encoding)
            assert (status, body, headers["ETag"]) == (304, b"", tag), known
            assert (headers["Vary"], "X-Request-ID" in headers) == ("Accept-Encoding", True)
    await add_deployment(many, "one-more")
    status, headers, _ = await get(api, LIST, If_None_Match=tag)
    assert (status, headers["ETag"] == tag) == (200, False)


async def test_an_etag_matches_while_nothing_changes_or_there_is_none(api: ServedApi, db: Database) -> None:
    await add_host(db, "d", gpus=1, gib=80)
    policy = {"min_gpu_utilization": 50, "time_window": "1m"}
    for kind, spec in (("deployments", {"engine": "simulated"}), ("policies", policy)):
        assert (await api.call("PUT", f"/api/v1/{kind}/d", json=spec))[0] == 201
    await add_instance(db, (await api.get(f"{LIST}/d"))["uid"], "d")
    answers: dict[str, set[tuple[str, bytes]]] = {}
    for _ in range(2):
        for route in all_routes("x"):
            if route.method != "GET" or route.access is Access.OPEN or route.media != "application/json":
                continue
            path = route.path.replace("{name}", "d").replace("{uuid}", "GPU-d-0").replace("{id}", "d")
            path += {"utilization": "?worker=d", "diff": "?from=1&to=1"}.get(path.rpartition("/")[2], "")
            if path.endswith(("/cache", "/live", "/gateways")):  # of an agent; a socket; gateways report each second
                continue
            status, headers, body = await get(api, path)
            assert status == 200, (path, body)
            if not route.momentary:
                answers.setdefault(path, set()).add((headers["ETag"], body))
            assert route.momentary == (headers.get("ETag") is None), path
            if route.momentary and isinstance(found := json.loads(body), dict):
                assert {"at", "until"} & set(found), path
    # When a key was last used may be written between.
    changed = {path for path, both in answers.items() if len({body for _, body in both}) > 1}
    assert changed <= {"/api/v1/keys"}
    assert {path for path, both in answers.items() if len({tag for tag, _ in both}) > 1} == changed


@pytest.mark.usefixtures("many")
async def test_the_etag_of_one_deployment_stays_its_generation(api: ServedApi) -> None:
    one = f"{LIST}/chat-1"
    for encoding in ("gzip", "identity"):
        status, headers, _ = await get(api, one, If_None_Match='"1"', Accept_Encoding=encoding)
        assert (status, headers["ETag"]) == (200, '"1"'), "its status may be another one"
        assert "Content-Encoding" not in headers
    _, headers, _ = await get(api, LIST)
    status, body = await api.call("DELETE", one, headers={"If-Match": headers["ETag"]})
    assert (status, "If-Match" in body["error"]["message"]) == (400, True)
    assert (await api.call("DELETE", one, headers={"If-Match": '"1"'}))[0] == 202


async def test_errors_have_no_etag(api: ServedApi) -> None:
    status, headers, _ = await get(api, f"{LIST}/missing", If_None_Match="*")
    assert (status, "ETag" in headers) == (404, False)
    long = "&".join(f"{'x' * 60}{n}=1" for n in range(8))
    status, headers, body = await get(api, f"{LIST}?{long}", Accept_Encoding="gzip")
    assert (status, headers["Content-Encoding"], "ETag" in headers) == (400, "gzip", False)
    assert json.loads(gzip.decompress(body))["error"]["code"] == "invalid"


async def test_streams_are_not_touched(api: ServedApi) -> None:
    headers = {**api.header(), "Accept-Encoding": "gzip", "If-None-Match": "*"}
    async with api.session.get(api.url + "/api/v1/watch", headers=headers) as answer:
        assert (answer.status, answer.headers.get("Content-Encoding"), answer.headers.get("ETag")) == (200, None, None)
        assert await answer.content.readline() == b"event: snapshot\n"


async def test_a_very_long_answer_is_done_in_threads_or_travels_as_it_is(
    api: ServedApi, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(40):
        await add_host(db, f"w{n}", gpus=8, gib=80)
    path = "/api/v1/gpus?limit=1000"
    _, _, plain = await get(api, path)
    assert len(plain) > representation.INLINE_BYTES
    answers = await asyncio.gather(*(get(api, path, Accept_Encoding="gzip") for _ in range(8)))
    assert [headers["Content-Encoding"] for _, headers, _ in answers] == ["gzip"] * 8
    assert {len(gzip.decompress(packed)) for _, _, packed in answers} == {len(plain)}
    monkeypatch.setattr(representation, "MOST_IN_THREADS", 0)
    status, headers, body = await get(api, path, Accept_Encoding="gzip")
    assert (status, "Content-Encoding" in headers, "ETag" in headers, len(body)) == (200, False, False, len(plain))


async def test_an_ordinary_client_reads_what_it_did(api: ServedApi, many: Database) -> None:
    async with aiohttp.ClientSession(headers=api.header()) as client, client.get(api.url + LIST) as answer:
        assert len((await answer.json())["items"]) == 20
        assert many is not None
