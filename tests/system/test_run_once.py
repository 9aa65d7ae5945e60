"""One request runs on one engine, over real processes: engines that die of it, and an agent that stops in between."""

import asyncio
import json
import signal
import sys
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from support.processes.cluster import Cluster

CHAT = "/v1/chat/completions"
# Notes each request that it takes, and does what the prompt says.
ENGINE = """
import asyncio, json, os, sys
from aiohttp import web

async def chat(request):
    asked = json.loads(await request.read())
    what = asked["messages"][0]["content"]
    with open({seen!r}, "a") as seen:
        seen.write(what + "\\n")
    if what == "die":
        os._exit(3)
    response = web.StreamResponse(headers={{"Content-Type": "text/event-stream"}})
    await response.prepare(request)
    for n in range(5):
        await response.write(b"data: %d\\n\\n" % n)
    if what == "die later":
        await asyncio.sleep(0.2)
        os._exit(3)
    await response.write(b"data: [DONE]\\n\\n")
    return response

app = web.Application()
app.router.add_post("/v1/chat/completions", chat)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)
"""


async def ask(cluster: Cluster, what: str) -> tuple[int, bytes, str, bool]:
    """Status, content, x-should-retry, and whether the answer ended as it should."""
    body = {"model": "m", "messages": [{"role": "user", "content": what}]}
    async with cluster.session.post(CHAT, json=body) as got:
        content = bytearray()
        try:
            async for piece in got.content.iter_any():
                content += piece
        except aiohttp.ClientPayloadError:
            return got.status, bytes(content), got.headers.get("x-should-retry", ""), False
        return got.status, bytes(content), got.headers.get("x-should-retry", ""), True


@pytest.mark.cases
async def test_a_deadly_request_kills_one_engine_and_a_stopping_agent_costs_no_request(
    cluster: Cluster, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    program = tmp_path / "engine.py"
    program.write_text(ENGINE.format(seen=str(seen)))
    await cluster.start_controller(GPUWARD_RESTART_BACKOFF_S="60")
    for name in ("a", "b", "c"):
        await cluster.start_agent(name, gpus=1, GPUWARD_AGENT_ON_EXIT="keep")
    command = [sys.executable, str(program), "{port}"]
    resources = {"gpus": 1}
    await cluster.apply("m", engine="custom", command=command, resources=resources, replicas=3)
    await cluster.running("m", 60)
    assert (await ask(cluster, "hello"))[0] == 200

    status, content, retry, _ = await ask(cluster, "die")
    assert (status, json.loads(content)["error"]["code"], retry) == (502, "engine_died", "false")
    status, content, _, ended = await ask(cluster, "die later")
    events = content.split(b"\n\n")
    assert (status, events[:5], ended) == (200, [b"data: %d" % n for n in range(5)], False)
    assert json.loads(events[5].removeprefix(b"data: "))["error"]["code"] == "engine_died"
    assert b"[DONE]" not in content
    counts = Counter(seen.read_text().splitlines())
    assert (counts["die"], counts["die later"]) == (1, 1), "one engine saw it"
    await asyncio.sleep(1.0)  # a process that ends may still accept a connection and drop it
    for _ in range(6):
        assert (await ask(cluster, "hello"))[0] == 200, "the third replica answers"

    await cluster.apply("m", engine="custom", command=command, resources=resources, replicas=3, env={"AGAIN": "1"})
    await cluster.running("m", 60)
    stopped = 0
    answers = []
    for number in range(60):
        if number in (10, 30):
            cluster.signal("ab"[stopped], signal.SIGTERM)
            stopped += 1
        answers.append((await ask(cluster, "hello"))[0])
        await asyncio.sleep(0.02)
    assert set(answers) == {200}, "the others answer, and the client sees nothing of it"
    assert Counter(seen.read_text().splitlines())["hello"] == 60 + 7
