"""Paths and settings of docs/clients.md that belong to programs which are no packages, and what does not work."""

import configparser
import json
import tomllib
from typing import Any

import aiohttp
import pytest
import yaml

from clients.snippets import under_headings
from support.processes.cluster import Cluster
from support.processes.served_models import bearer

pytestmark = pytest.mark.asyncio(loop_scope="module")
ADDRESS = "https://gpuward.example"
TEXT = "The quick brown fox jumps over the lazy dog"
SHORT = "Hello! [simulate tokens=9]"  # the engine ends there by itself
CHAT: Any = [{"role": "user", "content": "Hello!"}]
TOOL = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}
SETTINGS = {heading: block.text for heading, block in under_headings("ini", "yaml", "json", "toml").items()}


class Program:
    """Sends to the base URL of a program's settings, with its key."""

    def __init__(self, cluster: Cluster, base: str, key: str, **headers: str) -> None:
        assert base.startswith(ADDRESS), base
        self._base = cluster.url + base.removeprefix(ADDRESS)
        self._headers = {**bearer(key), **headers}

    async def get(self, path: str) -> Any:
        async with aiohttp.request("GET", self._base + path, headers=self._headers) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def send(self, path: str, **body: Any) -> Any:
        """The answer; of a stream its events, in order."""
        async with aiohttp.request("POST", self._base + path, json=body, headers=self._headers) as answer:
            text = await answer.text()
            assert answer.status == 200, text
        if not body.get("stream"):
            return json.loads(text)
        data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        return [json.loads(one) for one in data if one != "[DONE]"]

    async def chats(self, model: str) -> None:
        """Streams a chat completion of this model, with its usage."""
        options = {"include_usage": True}
        events = await self.send("/chat/completions", model=model, messages=CHAT, stream=True, stream_options=options)
        deltas = [choice["delta"].get("content") or "" for event in events for choice in event["choices"]]
        assert "".join(deltas).startswith(TEXT)
        assert events[-1]["usage"]["completion_tokens"] > 0


async def test_open_webui_lists_and_streams(cluster: Cluster, key: str) -> None:
    settings = configparser.ConfigParser()
    settings.optionxform = str  # type: ignore[assignment,method-assign]
    settings.read_string("[env]\n" + SETTINGS["Open WebUI"])
    env = settings["env"]
    assert env["OPENAI_API_KEY"] == "KEY"
    program = Program(cluster, env["OPENAI_API_BASE_URL"], key)
    (name,) = [one["id"] for one in (await program.get("/models"))["data"]]
    await program.chats(name)


async def test_continue_sends_for_each_role(cluster: Cluster, key: str) -> None:
    (model,) = yaml.safe_load(SETTINGS["Continue"])["models"]
    assert (model["provider"], model["apiKey"]) == ("openai", "KEY")
    program = Program(cluster, model["apiBase"], key)
    await program.chats(model["model"])
    filled = await program.send("/completions", model=model["model"], prompt="def f(", suffix="return", max_tokens=4)
    assert filled["choices"][0]["text"]
    embedded = await program.send("/embeddings", model=model["model"], input=["a", "b"])
    assert [len(one["embedding"]) > 1 for one in embedded["data"]] == [True, True]


async def test_claude_code_streams_calls_tools_and_counts(cluster: Cluster, key: str) -> None:
    env = json.loads(SETTINGS["Claude Code"])["env"]
    assert env["ANTHROPIC_AUTH_TOKEN"] == "KEY"
    (model,) = {value for name, value in env.items() if name.endswith("_MODEL")}
    headers = {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "interleaved-thinking-2025-05-14",
        "X-Claude-Code-Session-Id": "0",
    }
    program = Program(cluster, env["ANTHROPIC_BASE_URL"], key, **headers)
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    ask: Any = {"model": model, "max_tokens": 50, "messages": CHAT, "system": system}
    events = await program.send("/v1/messages?beta=true", **ask, stream=True)
    deltas = [event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta"]
    assert "".join(deltas).startswith(TEXT)
    assert events[-1]["type"] == "message_stop"
    tools = [{"name": TOOL["name"], "input_schema": TOOL["parameters"]}]
    used = await program.send("/v1/messages?beta=true", **ask, tools=tools)
    assert (used["stop_reason"], used["content"][0]["name"]) == ("tool_use", "look")
    counted = await program.send("/v1/messages/count_tokens?beta=true", model=model, messages=CHAT, tools=tools)
    assert counted["input_tokens"] > 0
    (listed_model,) = (await program.get("/v1/models?limit=1000"))["data"]
    assert listed_model["id"] == model
    assert "display_name" not in listed_model


async def test_codex_streams_responses_with_tools(cluster: Cluster, key: str) -> None:
    settings = tomllib.loads(SETTINGS["Codex"])
    provider = settings["model_providers"][settings["model_provider"]]
    assert (provider["env_key"], provider["wire_api"]) == ("GPUWARD_API_KEY", "responses")
    assert (settings["web_search"], settings["features"]["multi_agent"]) == ("disabled", False)
    program = Program(cluster, provider["base_url"], key, **{"session-id": "0"})
    ask: Any = {"model": settings["model"], "instructions": "Be brief.", "store": False, "stream": True}
    ask |= {"include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"}, "parallel_tool_calls": True}
    ask |= {"prompt_cache_key": "0", "client_metadata": {"session_id": "0"}}
    said = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": SHORT}]}]
    events = await program.send("/responses", **ask, input=said)
    assert events[-1]["type"] == "response.completed"
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert text.startswith(TEXT)
    events = await program.send("/responses", **ask, input=said, tools=[{"type": "function", **TOOL}])
    (item,) = events[-1]["response"]["output"]
    assert (item["type"], item["name"]) == ("function_call", "look")


# What does not work


@pytest.mark.parametrize("path", ["files", "batches", "assistants", "threads", "realtime"])
async def test_the_paths_that_the_page_names_do_not_exist(path: str, cluster: Cluster, key: str) -> None:
    for method in ("GET", "POST"):
        async with cluster.session.request(method, f"/v1/{path}", json={}, headers=bearer(key)) as answer:
            assert answer.status == 404, await answer.text()


async def test_a_websocket_of_responses_and_background_are_refused(cluster: Cluster, key: str) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await cluster.session.ws_connect("/v1/responses", headers=bearer(key))
    assert refused.value.status == 405
    body = {"model": "chat", "input": "Hello!", "background": True}
    async with cluster.session.post("/v1/responses", json=body, headers=bearer(key)) as answer:
        assert (answer.status, (await answer.json())["error"]["param"]) == (400, "background")


async def test_the_simulated_engine_has_the_paths_that_the_page_names(product: Cluster) -> None:
    bodies: dict[str, Any] = {
        "/v1/chat/completions": {"messages": CHAT},
        "/v1/completions": {"prompt": "x"},
        "/v1/embeddings": {"input": "x"},
        "/v1/responses": {"input": "x"},
        "/v1/messages": {"messages": CHAT, "max_tokens": 5},
    }
    found = {}
    for path, body in bodies.items():
        async with product.session.post(path, json={"model": "chat", **body}) as answer:
            found[path] = answer.status
    assert found == dict(zip(bodies, (200, 200, 200, 404, 404), strict=True))
