"""The simulated engine, as a process."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from agent.sampling.engine_metrics import read_samples, sum_gauges
from support.processes.simulated_engine import simulated_engine

USER = [{"role": "user", "content": "x"}]
TOOLS = [{"type": "function", "function": {"name": "x"}}]


@asynccontextmanager
async def engine(*args: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, aiohttp.ClientSession]]:
    async with simulated_engine(*args) as started:
        yield started.process, started.client


async def test_it_answers_once_it_has_loaded() -> None:
    async with engine("--load-seconds", "0.8") as (_, client):
        async with client.get("/health") as answer:
            assert answer.status == 503
        status = 503
        while status == 503:
            await asyncio.sleep(0.05)
            async with client.get("/health") as answer:
                status = answer.status
        assert status == 200
        async with client.get("/v1/models") as answer:
            assert [card["id"] for card in (await answer.json())["data"]] == ["demo"]


async def test_completions_whole_and_streamed() -> None:
    chat = {"model": "demo", "messages": [{"role": "user", "content": "one two three"}], "max_tokens": 5}
    async with engine() as (_, client):
        async with client.post("/v1/chat/completions", json=chat) as answer:
            whole = await answer.json()
        assert whole["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
        assert whole["choices"][0]["message"]["content"] == "The quick brown fox jumps"
        streamed = {**chat, "stream": True, "stream_options": {"include_usage": True}}
        async with client.post("/v1/chat/completions", json=streamed) as answer:
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            events = [line.removeprefix("data: ") for line in (await answer.text()).split("\n\n") if line]
        assert events[-1] == "[DONE]"
        chunks = [json.loads(event) for event in events[:-1]]
        assert "".join(c["choices"][0]["delta"]["content"] for c in chunks[:-1]) == "The quick brown fox jumps"
        assert chunks[-1]["usage"] == whole["usage"]
        async with client.post("/v1/completions", json={"model": "demo", "prompt": "hi", "max_tokens": 2}) as answer:
            assert (await answer.json())["choices"][0]["text"] == "The quick"


@pytest.mark.parametrize("name", ["demo", "chat", "org/Other-7B:latest"])
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_it_answers_with_the_name_that_was_asked_for(path: str, name: str) -> None:
    """As the gateway does, which asks by the deployment's name; the engine was started with another."""
    asked = {"model": name, "messages": [{"role": "user", "content": "x"}], "prompt": "x", "max_tokens": 2}
    async with engine() as (_, client):
        async with client.post(f"/v1/{path}", json=asked) as answer:
            assert (await answer.json())["model"] == name
        streamed = {**asked, "stream": True, "stream_options": {"include_usage": True}}
        async with client.post(f"/v1/{path}", json=streamed) as answer:
            events = [line.removeprefix("data: ") for line in (await answer.text()).split("\n\n") if line]
    assert [json.loads(event)["model"] for event in events[:-1]] == [name] * 3


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat/completions", {"model": "demo"}, "messages"),
        ("chat/completions", {"model": "demo", "messages": [1]}, "messages"),
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}]}, "model"),
        ("completions", {"model": "demo", "prompt": 1}, "prompt"),
        ("completions", {"model": "demo", "prompt": "x", "max_tokens": 0}, "max_tokens"),
        ("completions", {"model": "demo", "prompt": "x", "stream": "yes"}, "stream"),
        ("completions", [], "body"),
        ("completions", {"model": "demo", "prompt": "x", "n": 0}, "n"),
        ("chat/completions", {"model": "demo", "messages": USER, "tools": [{}]}, "tools"),
        (
            "chat/completions",
            {"model": "demo", "messages": USER, "tools": TOOLS, "tool_choice": {"function": {"name": "y"}}},
            "tool_choice",
        ),
        ("embeddings", {"model": "demo"}, "input"),
        ("embeddings", {"model": "demo", "input": "x", "encoding_format": "int8"}, "encoding_format"),
        ("embeddings", {"model": "demo", "input": "x", "dimensions": -1}, "dimensions"),
    ],
)
async def test_invalid_requests_name_their_field(path: str, body: object, param: str) -> None:
    async with engine() as (_, client), client.post(f"/v1/{path}", json=body) as answer:
        error = (await answer.json())["error"]
        assert (answer.status, error["type"], error["param"]) == (400, "invalid_request_error", param)


async def test_its_exit_follows_its_arguments() -> None:
    async with engine("--exit-after", "0.3", "--exit-code", "7") as (process, _):
        assert await process.wait() == 7
    async with engine() as (process, _):
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    async with engine("--ignore-sigterm") as (process, client):
        process.send_signal(signal.SIGTERM)
        async with client.get("/health") as answer:
            assert answer.status == 200
        process.kill()
        assert await process.wait() == -signal.SIGKILL


async def test_it_reports_no_request_and_counts_tokens() -> None:
    gauges = ("simulated_requests_running", "simulated_requests_waiting")
    counters = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    body = {"model": "demo", "prompt": "one two three", "max_tokens": 5}
    async with engine() as (_, client):
        for _ in range(2):
            async with client.post("/v1/completions", json=body) as answer:
                assert answer.status == 200
        async with client.get("/metrics") as answer:
            text = await answer.text()
    assert all(f"# TYPE {name} gauge" in text for name in gauges)
    assert sum_gauges(read_samples(text, gauges), gauges) == 0
    assert read_samples(text, counters) == dict(zip(counters, ([6], [10]), strict=True))


async def test_arguments_of_other_versions_are_ignored_with_a_warning() -> None:
    """Agents and controllers of earlier versions may send them."""
    old = ("--token-seconds", "0.5", "--slots", "3", "--silent", "--refuse", "503", "--served-model-name", "a", "b")
    async with simulated_engine(*old, "--lora-modules", "tuned=/lora/tuned") as started:
        assert started.log == [f"warning: these arguments have no effect: {' '.join(old)}\n"]
        async with started.client.get("/v1/models") as answer:
            cards = (await answer.json())["data"]
        async with started.client.post("/v1/completions", json={"model": "demo", "prompt": "x"}) as answer:
            assert answer.status == 200
    assert [(card["id"], card["parent"]) for card in cards] == [("demo", None), ("tuned", "demo")]


async def test_what_it_does_not_serve_and_bodies_in_chunks() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"model": "demo", "prompt": '
        yield b'"x"}'

    async with engine() as (_, client):
        async with client.post("/v1/completions", data=chunks(), expect100=True) as answer:
            assert (await answer.json())["choices"][0]["finish_reason"] == "stop"
        async with client.post("/v1/messages", json={}) as answer:
            assert answer.status == 404
        async with client.get("/v1/completions") as answer:
            assert (answer.status, answer.headers["Allow"]) == (405, "POST")


async def test_it_imports_little() -> None:
    """A host may start hundreds at once; aiohttp alone takes half a second on a slow one."""
    code = "import sys, agent.simulated_engine.__main__; print({'aiohttp', 'structlog', 'pydantic'} & set(sys.modules))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-P", "-c", code, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert (process.returncode, out.decode().strip()) == (0, "set()")
