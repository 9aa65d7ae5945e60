"""Every endpoint on real processes: what is routed, what engines see of a request, what is refused, what is listed."""

import gzip
import io
import json
import math
import re
import time
from typing import Any

import aiohttp
import msgspec
import pytest

from support.processes.cluster import Cluster
from support.processes.served_models import (
    CHAT,
    JSON_BODIES,
    bearer,
    counters,
    last_body,
    listed,
    make_key,
    serve,
    states,
)

STAMP = re.compile(rb'"monotonic_s": ([0-9.]+)')  # of the engine, in each event
TOKENS, EVERY_S, DELAY_S, TRIES = 20, 0.05, 0.02, 10
KEYS_AND_COOKIES = {"authorization", "x-api-key", "api-key", "cookie", "x-drop", "x-gpuward-in-flight"}


async def post(cluster: Cluster, path: str, body: Any, **headers: str) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with cluster.session.post(path, data=data, headers=headers) as answer:
        content = await answer.read()
        return answer.status, json.loads(content) if content[:1] in b"{[" else content


async def test_g1_to_g10_what_passes_and_what_is_refused(cluster: Cluster) -> None:
    serving = {"aliases": ["gpt-4o-mini"], "adapters": {"support": "path:/lora/support", "org/sql": "path:/lora/sql"}}
    await serve(
        cluster,
        chat={"serving": serving},
        named={"args": {"served_model_name": "org/own", "without": ["/v1/responses", "/score"]}},
    )
    await listed(cluster, "chat", "named", "support")
    await every_endpoint_is_routed(cluster)
    await bytes_pass_unchanged_but_for_the_model(cluster)
    await events_pass_at_once(cluster)
    await what_cannot_be_routed_is_refused(cluster)
    await keys_and_cookies_stay_at_the_gateway(cluster)


async def every_endpoint_is_routed(cluster: Cluster) -> None:
    """G4."""
    before = (await counters(cluster, "chat"))[0]["by_path"]
    for path, fields in JSON_BODIES.items():
        status, content = await post(cluster, path, {"model": "chat", **fields})
        assert status == 200, (path, content)
    after = (await counters(cluster, "chat"))[0]["by_path"]
    assert {path: after[path] - before.get(path, 0) for path in JSON_BODIES} == dict.fromkeys(JSON_BODIES, 1)
    for path in ("/v1/responses", "/score"):
        assert await post(cluster, path, {"model": "named", **JSON_BODIES[path]}) == (404, {"detail": "Not Found"})


def values(body: bytes) -> dict[str, bytes]:
    """The top-level values of a JSON body, as they are written."""
    return {name: bytes(value) for name, value in msgspec.json.decode(body, type=dict[str, msgspec.Raw]).items()}


async def bytes_pass_unchanged_but_for_the_model(cluster: Cluster) -> None:
    """G1, G2, G9. A body with another name of the model is written again from its top-level values."""
    text = """{ "temperature":0.10,  "n" : 1e0,
      "messages":[{"role":"user","content":"\u00e4 \\"model\\": \\"gpt\\" \\u00e9"}],
      "model" : "%s", "vllm_xargs": {"model":"x", "base_url":"http://127.0.0.1:1"},"api_base":"http://127.0.0.1:1",
      "extra_body":[{"base_url":"http://a"}], "big":123456789012345678901234567890 }"""
    for asked, deployment, seen in (
        ("chat", "chat", "chat"),
        ("gpt-4o-mini", "chat", "chat"),
        ("support", "chat", "support"),
        ("org/sql", "chat", "org/sql"),
        ("named", "named", "org/own"),
    ):
        status, content = await post(cluster, CHAT, (text % asked).encode())
        assert status == 200, content
        assert content["model"] == seen
        sent, wanted = await last_body(cluster, deployment), (text % seen).encode()
        assert sent == wanted if asked == seen else values(sent) == values(wanted)
    told = {"model": "chat", "messages": [{"role": "user", "content": "[simulate gzip tokens=3]"}]}
    async with aiohttp.ClientSession(auto_decompress=False, headers=cluster.session.headers) as client:
        for stream in (False, True):
            body = {**told, "stream": stream, "stream_options": {"include_usage": True}} if stream else told
            async with client.post(cluster.url + CHAT, json=body, headers={"Accept-Encoding": "gzip"}) as answer:
                assert (answer.status, answer.headers["Content-Encoding"]) == (200, "gzip")
                assert b"brown" in gzip.decompress(await answer.read())


async def events_pass_at_once(cluster: Cluster) -> None:
    """G3. On a loaded machine some streams are late; what is built in would be late in each."""
    worst: list[float] = []
    for _ in range(TRIES):
        told = {
            "model": "chat",
            "messages": [{"role": "user", "content": f"[simulate tokens={TOKENS} token_seconds={EVERY_S}]"}],
        }
        async with cluster.session.post(CHAT, json={**told, "stream": True}) as answer:
            delays, merged = [], 0
            async for piece in answer.content.iter_any():
                stamps = [float(one) for one in STAMP.findall(piece)]
                delays += [time.monotonic() - one for one in stamps]
                merged += bool(stamps) and stamps[-1] - stamps[0] > EVERY_S / 2
        assert len(delays) >= TOKENS
        worst.append(math.inf if merged else sorted(delays)[-2])
        if worst[-1] <= DELAY_S:
            return
    raise AssertionError(f"the last but one delay of an event in each stream, in seconds: {worst}")


async def taken_in_all(cluster: Cluster) -> int:
    return sum(one["taken"] for one in [*await counters(cluster, "chat"), *await counters(cluster, "named")])


async def what_cannot_be_routed_is_refused(cluster: Cluster) -> None:
    """G6."""
    taken = await taken_in_all(cluster)
    assert (await post(cluster, "/v1/unknown", {"model": "chat"}))[1]["error"]["code"] == "not_found"
    for path in JSON_BODIES:
        async with cluster.session.get(path) as answer:
            assert (answer.status, answer.headers["Allow"]) == (405, "POST")
            assert (await answer.json())["error"]["type"] == "invalid_request_error"
    async with cluster.session.post("/v1/models") as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "GET")
    for path in (CHAT, "/rerank"):
        for body, param in ((b"{", None), (b"{}", "model"), (b'{"model": 7}', "model"), (b'{"model": ""}', "model")):
            status, content = await post(cluster, path, body)
            assert (status, content["error"]["code"], content["error"]["param"]) == (400, "invalid", param)
    async with cluster.session.post(CHAT, data=io.BytesIO(bytes(65 * 2**20))) as answer:
        assert answer.status == 413
    assert await taken_in_all(cluster) == taken, "no engine is asked"


async def keys_and_cookies_stay_at_the_gateway(cluster: Cluster) -> None:
    """G8. The client's own headers reach the engine."""
    key = await make_key(cluster)
    more = {
        "Cookie": "a=b",
        "Connection": "keep-alive, X-Drop",
        "X-Drop": "1",
        "X-Mine": "1",
        "X-Gpuward-In-Flight": "9",
    }
    body = {"model": "chat", "messages": [{"role": "user", "content": "x"}]}
    async with aiohttp.ClientSession(cluster.url) as client:
        for headers in (bearer(key), {"x-api-key": key}, {"api-key": key}):
            async with client.post(CHAT, json=body, headers=headers | more) as answer:
                assert answer.status == 200, headers
            seen = dict((await counters(cluster, "chat"))[0]["last"]["headers"])
            assert seen["x-mine"] == "1"
            assert not KEYS_AND_COOKIES & seen.keys()
            assert key not in json.dumps(seen)
        async with client.post(CHAT, json=body, headers={"Authorization": f"Basic {key}"}) as answer:
            assert answer.status == 401


@pytest.mark.cases
async def test_g7_the_list_of_models_is_what_a_key_may_ask_for(cluster: Cluster) -> None:
    """G36: neither the list nor one of its entries wakes a model."""
    sleepy = {"replicas": {"min": 0, "max": 1}, "scaling": {"idle_after": "1s", "window": "1s", "down_window": "1s"}}
    serving = {"aliases": ["org/Chat 4"], "adapters": {"support": "path:/lora/support"}}
    await serve(
        cluster,
        chat={**sleepy, "replicas": {"min": 0, "max": 1}, "serving": serving},
        **{"embed-a": {}, "other": {}, "stopped": {"replicas": 0}},
    )
    await cluster.until(lambda: cluster.phase_is("chat", "asleep"), "chat is asleep")
    await listed(cluster, "embed-a", "other")
    key = await make_key(cluster, models=["chat", "embed-*"])
    asleep = {"state": "asleep", "adapter_of": None}
    assert await states(cluster, key) == {
        "chat": asleep,
        "org/Chat 4": asleep,
        "support": {"state": "asleep", "adapter_of": "chat"},
        "embed-a": {"state": "running", "adapter_of": None},
    }
    for name, status in (
        ("chat", 200),
        ("org/Chat%204", 200),
        ("org%2FChat%204", 200),
        ("support", 200),
        ("other", 404),
        ("stopped", 404),
        ("unknown", 404),
    ):
        async with cluster.session.get(f"/v1/models/{name}", headers=bearer(key)) as answer:
            assert answer.status == status, name
            content = await answer.json()
            if status == 200:
                assert content.keys() == {"id", "object", "created", "owned_by", "gpuward"}
                assert content["object"] == "model"
            else:
                assert content["error"]["code"] == "model_not_found"
    async with cluster.session.get("/v1/models/chat", headers=bearer("gpw_unknown")) as answer:
        assert answer.status == 401
    status, answer_ = await post(cluster, CHAT, {"model": "other", "messages": []}, **bearer(key))
    assert (status, answer_["error"]["code"]) == (404, "model_not_found"), "G44"
    assert await cluster.instances("chat") == []
    async with cluster.session.post(CHAT, json={"model": "support", **JSON_BODIES[CHAT]}) as woken:
        assert (woken.status, (await woken.json())["model"]) == (200, "support")
    assert (await states(cluster, key))["support"] == {"state": "running", "adapter_of": "chat"}


@pytest.mark.cases
async def test_a_new_adapter_is_served_by_its_own_revision(cluster: Cluster) -> None:
    await serve(cluster, chat={"serving": {"adapters": {"a": "path:/lora/a"}}})
    await listed(cluster, "chat", "a")
    (before,) = await cluster.instances("chat")
    await cluster.apply("chat", resources={"gpus": 0}, serving={"adapters": {"b": "path:/lora/b"}})
    await listed(cluster, "chat", "b")
    (after,) = await cluster.instances("chat")
    assert after["spec"]["revision"] > before["spec"]["revision"]
    status, content = await post(cluster, CHAT, {"model": "b", **JSON_BODIES[CHAT]})
    assert (status, content.get("model")) == (200, "b")
    assert (await post(cluster, CHAT, {"model": "a", **JSON_BODIES[CHAT]}))[0] == 404
    status, answer = await cluster.call("PUT", "/deployments/b", {"engine": "simulated"})
    assert status == 400
    assert "'b' is an adapter of deployment 'chat' already" in json.dumps(answer)
