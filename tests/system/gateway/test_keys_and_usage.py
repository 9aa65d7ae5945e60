"""Keys' limits and usage on a whole cluster: made and changed by the command line, held at the gateway, added up."""

import asyncio
import csv
import io
import json
import os
import sys
import time
from typing import Any

import aiohttp
import pytest

from support.processes.cluster import Cluster
from support.processes.served_models import CHAT, bearer, counters, last_body, listed, serve

pytestmark = [pytest.mark.cases, pytest.mark.timeout(300)]


async def gpuward(cluster: Cluster, *argv: str) -> str:
    """Runs a verb as the administrator; returns what it prints."""
    key = cluster.session.headers["Authorization"].removeprefix("Bearer ")
    env = {**os.environ, "GPUWARD_URL": cluster.url, "GPUWARD_API_KEY": key}
    command = (sys.executable, "-P", "-m", "cli", *argv)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, env=env, stdout=pipe, stderr=pipe)
    out, error = await process.communicate()
    assert process.returncode == 0, error.decode()
    return out.decode()


async def make(cluster: Cluster, *argv: str) -> str:
    return (await gpuward(cluster, "key", "create", "--role", "inference", *argv)).strip().splitlines()[-1]


async def key_id(cluster: Cluster, name: str) -> str:
    items = json.loads(await gpuward(cluster, "get", "keys", "-o", "json"))["items"]
    return str(next(one["id"] for one in items if one["name"] == name))


async def ask(cluster: Cluster, key: str, told: str = "tokens=1", **fields: Any) -> tuple[int, str, dict[str, str]]:
    """Status, code of the error, and headers."""
    body = {"model": "chat", "messages": [{"role": "user", "content": f"[simulate {told}]"}], **fields}
    async with cluster.session.post(CHAT, json=body, headers=bearer(key)) as answer:
        text = await answer.text()
        code = json.loads(text)["error"]["code"] if answer.status >= 400 else ""
        return answer.status, code, {name.lower(): value for name, value in answer.headers.items()}


async def test_g45_to_g48_limits_made_by_the_command_line(cluster: Cluster) -> None:
    await serve(cluster, chat={"args": {"kv_tokens": 1_000_000}})
    await listed(cluster, "chat")
    await sixty_a_minute(cluster)
    await tokens_are_charged(cluster)
    await four_at_once(cluster)
    await a_days_tokens(cluster)
    await globs_expiry_and_what_is_shown(cluster)


async def sixty_a_minute(cluster: Cluster) -> None:
    """G45."""
    key = await make(cluster, "--name", "minute", "--rpm", "60")
    assert (await ask(cluster, key))[0] == 200, "the key is known"
    began = time.monotonic()
    found = await asyncio.gather(*(ask(cluster, key) for _ in range(60 + 10)))
    passed, refused = [one for one in found if one[0] == 200], [one for one in found if one[0] == 429]
    assert 59 <= len(passed) <= 59 + 2 + (time.monotonic() - began), "one more a second"
    assert len(passed) + len(refused) == 70
    _, code, headers = refused[-1]
    assert (code, headers["x-ratelimit-limit-requests"]) == ("rate_limited", "60")
    assert (headers["x-ratelimit-remaining-requests"], headers["retry-after"]) == ("0", "1")
    assert headers["x-ratelimit-reset-requests"] == "1s"
    await asyncio.sleep(1.2)
    assert (await ask(cluster, key))[0] == 200
    await gpuward(cluster, "key", "update", await key_id(cluster, "minute"), "--rpm", "none")

    async def none_refused() -> bool:
        return {status for status, _, _ in await asyncio.gather(*(ask(cluster, key) for _ in range(20)))} == {200}

    await cluster.until(none_refused, "the limit is gone")


async def tokens_are_charged(cluster: Cluster) -> None:
    """G47."""
    for stream in (False, True):
        key = await make(cluster, "--name", f"tokens-{stream}", "--tpm", "1000")
        prompt = "w " * 499
        body = {"messages": [{"role": "user", "content": f"{prompt}[simulate tokens=1000]"}]}
        began = time.monotonic()
        status, code, _ = await ask(cluster, key, **body, stream=stream)
        assert (status, code) == (200, "")
        status, code, headers = await ask(cluster, key)
        assert (status, code) == (429, "rate_limited")
        spent = time.monotonic() - began
        assert 31 - spent - 2 <= int(headers["retry-after"]) <= 31


async def four_at_once(cluster: Cluster) -> None:
    """G48: five at once; one client closes."""
    key = await make(cluster, "--name", "parallel", "--parallel", "4")
    assert (await ask(cluster, key))[0] == 200
    tasks = [asyncio.create_task(ask(cluster, key, "tokens=1 wait=60")) for _ in range(4)]

    async def four_run() -> bool:
        return (await counters(cluster, "chat"))[0]["running"] == 4

    await cluster.until(four_run, "four are in flight")
    assert (await ask(cluster, key))[:2] == (429, "too_many_parallel")
    tasks[0].cancel()

    async def next_passes() -> bool:
        return (await ask(cluster, key))[0] == 200

    assert await cluster.until(next_passes, "the slot is free") < 3.0, "100 ms, and the machine is shared"
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def a_days_tokens(cluster: Cluster) -> None:
    """G48."""
    key = await make(cluster, "--name", "day", "--tokens-per-day", "100")
    assert (await ask(cluster, key, "tokens=200"))[0] == 200
    status, code, headers = await ask(cluster, key)
    assert (status, code, headers["x-should-retry"]) == (429, "quota_used_up", "false")
    assert abs(int(headers["retry-after"]) - (86_400 - time.time() % 86_400)) < 60


async def globs_expiry_and_what_is_shown(cluster: Cluster) -> None:
    key = await make(cluster, "--name", "narrow", "--models", "embed-*", "--expires", "30d")
    assert (await ask(cluster, key))[:2] == (404, "model_not_found")
    changed = await key_id(cluster, "narrow")
    await gpuward(cluster, "key", "update", changed, "--models", "chat,embed-*", "--parallel", "9", "--tpm", "10000")

    async def allowed() -> bool:
        return (await ask(cluster, key))[0] == 200

    await cluster.until(allowed, "the change counts")
    shown = await gpuward(cluster, "get", "keys", "-o", "wide")
    (line,) = (one for one in shown.splitlines() if "narrow" in one)
    assert "chat,embed-*" in line
    await gpuward(cluster, "key", "update", changed, "--expires", "1s")

    async def expired() -> bool:
        return (await ask(cluster, key))[0] == 401

    await cluster.until(expired, "the key has expired")


async def test_g52_usage_adds_up_to_the_engines_own_counters(cluster: Cluster) -> None:
    """1,000 requests of two keys to two deployments, whole and streamed, some refused by the engine."""
    await serve(cluster, chat={"replicas": 2}, embed={})
    await listed(cluster, "chat", "embed")
    keys = [await make(cluster, "--name", name) for name in ("one", "two")]
    slots = asyncio.Semaphore(40)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(cluster.url, connector=connector) as client:

        async def one(n: int) -> int:
            headers, words = bearer(keys[n % 2]), "w " * (n % 7)
            if n % 5 == 0:
                path, body = "/v1/embeddings", {"model": "embed", "input": f"{words}x"}
            else:
                told = "refuse=400" if n % 50 == 1 else f"tokens={n % 9 + 1}"
                said = [{"role": "user", "content": f"{words}[simulate {told}]"}]
                path, body = CHAT, {"model": "chat", "messages": said, "stream": n % 2 == 0}
            async with slots, client.post(path, json=body, headers=headers) as answer:
                await answer.read()
                return answer.status

        statuses = await asyncio.gather(*(one(n) for n in range(1000)))
    assert set(statuses) == {200, 400}
    engines = {name: await counters(cluster, name) for name in ("chat", "embed")}
    expected = {
        name: [sum(one[field] for one in seen) for field in ("taken", "refused", "prompt_tokens", "generation_tokens")]
        for name, seen in engines.items()
    }
    assert sum(figures[0] for figures in expected.values()) == 1000

    async def report(*by: str) -> dict[tuple[str, ...], list[Any]]:
        printed = await gpuward(cluster, "usage", "--since", "7d", "--by", ",".join(by), "-o", "csv")
        rows = list(csv.DictReader(io.StringIO(printed)))
        names = ("requests", "errors", "prompt_tokens", "completion_tokens")
        columns = ["key_name" if one == "key" else one for one in by]
        return {tuple(row[c] for c in columns): [int(row[n]) for n in names] for row in rows}

    deadline = time.monotonic() + 30
    while sum(row[0] for row in (await report("model")).values()) < 1000:
        assert time.monotonic() < deadline, "usage is handed over each 2 s"
    assert await report("model") == {(name,): figures for name, figures in expected.items()}
    by_both = await report("key", "model")
    assert {key for key, _ in by_both} == {"one", "two"}
    for n, name in enumerate(("chat", "embed")):
        assert [sum(row[f] for (_, m), row in by_both.items() if m == name) for f in range(4)] == expected[name], n
    table = await gpuward(cluster, "usage", "--by", "key,model,endpoint")
    assert "chat/completions" in table
    items = json.loads(await gpuward(cluster, "usage", "-o", "json"))["items"]
    assert all(one["estimated"] == 0 for one in items)
    assert all(one["in_flight_s"] > 0 for one in items)
    assert all(one["first_token_s"] > 0 for one in items if one["model"] == "chat")


async def test_g50_tokens_of_streams_are_exact_or_estimated_and_say_so(cluster: Cluster) -> None:
    await serve(cluster, chat={})
    await listed(cluster, "chat")
    asks, leaves = await make(cluster, "--name", "asks"), await make(cluster, "--name", "leaves")

    def body(told: str, **fields: Any) -> dict[str, Any]:
        said = [{"role": "user", "content": f"a b c [simulate {told}]"}]
        return {"model": "chat", "messages": said, "stream": True, **fields}

    for fields, shown in (({}, False), ({"stream_options": {"include_usage": True}}, True)):
        async with cluster.session.post(CHAT, json=body("tokens=5", **fields), headers=bearer(asks)) as answer:
            events = (await answer.text()).split("\n\n")
        assert any('"usage": {' in one or '"usage":{' in one for one in events) is shown
        assert events[-2] == "data: [DONE]"
        assert json.loads(await last_body(cluster, "chat"))["stream_options"] == {"include_usage": True}
    told = body("tokens=40 token_seconds=0.5 usage=no")
    async with cluster.session.post(CHAT, json=told, headers=bearer(leaves)) as answer:
        for _ in range(7):
            await answer.content.readuntil(b"\n\n")
        answer.close()
    (engine,) = await counters(cluster, "chat")
    deadline = time.monotonic() + 30
    while True:
        items = json.loads(await gpuward(cluster, "usage", "--by", "key", "-o", "json"))["items"]
        found = {one["key_name"]: one for one in items}
        if found.keys() == {"asks", "leaves"} and found["asks"]["requests"] == 2:
            break
        assert time.monotonic() < deadline, items
    assert (found["asks"]["completion_tokens"], found["asks"]["estimated"]) == (10, 0)
    words = len(["a", "b", "c", "[simulate", "tokens=5]"])
    assert found["asks"]["prompt_tokens"] == 2 * words
    assert found["leaves"]["estimated"] == 1
    assert found["leaves"]["completion_tokens"] in (7, 8), "8 where its close was seen late"
    assert found["leaves"]["prompt_tokens"] > 0
    assert engine["taken"] == 3
