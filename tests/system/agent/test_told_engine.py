"""The simulated engine does what its arguments and the prompt tell it, on a real process."""

import asyncio
import gzip
import hashlib
import io
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agent.sampling.engine_metrics import read_samples, sum_gauges
from support.processes.simulated_engine import SimulatedEngine, chat, events, simulated_engine

CHAT = "/v1/chat/completions"
VLLM_GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting")


async def status(engine: SimulatedEngine, said: str, path: str = CHAT, **fields: Any) -> int:
    async with engine.client.post(path, json=chat(said, **fields)) as answer:
        await answer.read()
        return answer.status


async def read_until_cut(engine: SimulatedEngine, said: str) -> list[Any]:
    """The events of a stream that breaks off."""
    text = b""
    async with engine.client.post(CHAT, json=chat(said, stream=True)) as answer:
        try:
            async for piece in answer.content.iter_any():
                text += piece
        except aiohttp.ClientPayloadError:
            return events(text.decode())
    raise AssertionError("the stream ended as if it were whole")


async def test_it_dies_after_the_tokens_that_it_is_told() -> None:
    async with simulated_engine() as engine:
        came = await read_until_cut(engine, "[simulate tokens=20 token_seconds=0.01 die=5]")
        assert len(came) == 5
        assert await engine.process.wait() == -signal.SIGKILL
    async with simulated_engine("--die-after-tokens", "2") as engine:
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await status(engine, "x")
        assert await engine.process.wait() == -signal.SIGKILL


async def test_it_refuses_cuts_and_says_what_it_does_not_know() -> None:
    async with simulated_engine() as engine:
        assert [await status(engine, f"[simulate refuse={code}]") for code in (503, 500, 429, 400)] == [
            503,
            500,
            429,
            400,
        ]
        assert await status(engine, "[simulate explode]") == 400
        assert len(await read_until_cut(engine, "[simulate tokens=9 cut=3]")) == 3
        assert await status(engine, "x") == 200, "only the connection was cut"
        counters = await engine.counters()
        assert (counters["taken"], counters["finished"], counters["refused"], counters["cancelled"]) == (7, 6, 4, 1)
    async with simulated_engine("--refuse", "503") as engine:
        assert await status(engine, "x") == 503
        async with engine.client.post("/v1/messages", json=chat("x", max_tokens=1)) as answer:
            assert (await answer.json())["type"] == "error"


@pytest.mark.parametrize(
    ("said", "stream"),
    [
        ("[simulate silent]", False),
        ("[simulate silent]", True),
        ("[simulate wait=60]", True),
        ("[simulate tokens=1000 token_seconds=0.02]", True),
        ("[simulate tokens=1000 token_seconds=0.02]", False),
        ("[simulate tokens=9000000 token_bytes=10000]", True),  # stuck: the client reads nothing
    ],
)
async def test_a_clients_close_cancels_within_100_ms(said: str, stream: bool) -> None:
    async with simulated_engine() as engine:
        _, writer = await asyncio.open_connection(*engine.url.removeprefix("http://").split(":"))
        body = json.dumps(chat(said, stream=stream)).encode()
        writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body)) + body)
        await engine.until(running=1)
        await asyncio.sleep(0.2)
        writer.close()
        closed = time.monotonic()
        counters = await engine.until(cancelled=1)
        assert (counters["running"], counters["finished"]) == (0, 0)
        assert time.monotonic() - closed < 0.1 + 0.4, "and the machine is shared"


async def test_requests_beyond_the_slots_wait_in_its_queue() -> None:
    async with simulated_engine("--slots", "2", "--kv-tokens", "20") as engine:

        async def metrics() -> str:
            async with engine.client.get("/metrics") as answer:
                return await answer.text()

        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(status(engine, "a b c [simulate tokens=1 wait=0.8]")) for _ in range(5)]
            counters = await engine.until(running=2, queued=3)
            text = await metrics()
            assert sum_gauges(read_samples(text, VLLM_GAUGES), VLLM_GAUGES) == 5
            assert 'vllm:num_requests_waiting{engine="0",model_name="demo"} 3' in text
            assert 'vllm:kv_cache_usage_perc{engine="0",model_name="demo"} 0.6' in text
        assert [task.result() for task in asked] == [200] * 5
        counters = await engine.counters()
        assert (counters["most_running"], counters["running"], counters["queued"]) == (2, 0, 0)
        assert 'vllm:generation_tokens_total{engine="0",model_name="demo"} 5' in await metrics()


async def test_its_counters_tell_of_the_last_request() -> None:
    async with simulated_engine() as engine:
        body = b'{"model": "demo",  "messages": [{"role": "user", "content": "\xc3\xa4 0.10"}], "x": 0.10}'
        async with engine.client.post(CHAT, data=body, headers={"X-Kept": "yes"}) as answer:
            assert answer.status == 200
        last = (await engine.counters())["last"]
        assert (last["path"], last["body_bytes"]) == (CHAT, len(body))
        assert last["body_sha256"] == hashlib.sha256(body).hexdigest()
        assert ["x-kept", "yes"] in last["headers"]
        async with engine.client.get("/simulated/last-body") as answer:
            assert await answer.read() == body


async def test_it_lacks_paths_and_answers_to_its_names_alone() -> None:
    args = ("--without", "/v1/responses", "--without", "/score", "--served-model-name", "demo", "other")
    async with simulated_engine(*args, "--lora-modules", "tuned=/lora/tuned") as engine:
        assert [await status(engine, "x", path) for path in ("/v1/responses", "/score", "/v1/unknown")] == [404] * 3
        assert await status(engine, "x", "/v1/score", text_1="a", text_2="b") == 200
        for name, code in (("demo", 200), ("other", 200), ("tuned", 200), ("wrong", 404)):
            assert await status(engine, "x", model=name) == code
        async with engine.client.get(CHAT) as answer:
            assert (answer.status, answer.headers["Allow"]) == (405, "POST")
        async with engine.client.get("/v1/models") as answer:
            cards = (await answer.json())["data"]
        assert [(card["id"], card["parent"]) for card in cards] == [("demo", None), ("other", None), ("tuned", "demo")]


@pytest.mark.parametrize("stream", [False, True])
async def test_gzip_where_it_is_told_and_accepted(stream: bool) -> None:
    said = "[simulate gzip tokens=3]"
    async with simulated_engine() as engine, aiohttp.ClientSession(engine.url, auto_decompress=False) as client:
        bodies = []
        for accepted, encoding in (("gzip", "gzip"), ("identity", None)):
            headers = {"Accept-Encoding": accepted}
            async with client.post(CHAT, json=chat(said, stream=stream), headers=headers) as answer:
                assert answer.headers.get("Content-Encoding") == encoding
                bodies.append(await answer.read())
    assert b"brown" not in bodies[0]
    assert b"brown" in gzip.decompress(bodies[0])
    assert b"brown" in bodies[1]


async def test_events_come_when_they_are_due_with_their_time() -> None:
    stamps, came = [], []
    async with simulated_engine() as engine:
        request = chat("[simulate tokens=20 token_seconds=0.05]", stream=True)
        async with engine.client.post(CHAT, json=request) as answer:
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    came.append(time.monotonic())
                    stamps.append(json.loads(line.removeprefix(b"data: "))["monotonic_s"])
    assert len(stamps) == 20
    assert 0.9 <= stamps[-1] - stamps[0] <= 1.6
    late = sorted(now - stamp for now, stamp in zip(came, stamps, strict=True))
    assert late[0] >= 0
    assert late[10] < 0.05


async def test_its_journal_outlives_it(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    async with simulated_engine(env={**os.environ, "SIMULATED_ENGINE_JOURNAL": str(journal)}) as engine:
        await status(engine, "[simulate id=one]")
        await status(engine, "[simulate id=two refuse=503]")
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await status(engine, "[simulate id=three die]")
    lines = [line.split()[:3] for line in journal.read_text().splitlines()]
    pid = str(engine.process.pid)
    assert lines == [["taken", "one", pid], ["finished", "one", pid], ["refused", "two", pid], ["taken", "three", pid]]


def peak_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


async def test_a_large_form_is_read_in_pieces() -> None:
    sound = bytes(range(256)) * 120_000  # 30 MB
    form = aiohttp.FormData()
    form.add_field("file", io.BytesIO(sound), filename="speech.wav")
    form.add_field("model", "demo")
    async with simulated_engine() as engine:
        before = peak_kib(engine.process.pid)
        async with engine.client.post("/v1/audio/transcriptions", data=form) as answer:
            assert answer.status == 200
            (file,) = (await answer.json())["files"]
        assert file == {"name": "file", "bytes": len(sound), "sha256": hashlib.sha256(sound).hexdigest()}
        assert (await engine.counters())["last"]["body_bytes"] > len(sound)
        assert peak_kib(engine.process.pid) - before < 8 * 1024
