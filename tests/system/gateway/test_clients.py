"""OpenAI's and Anthropic's own clients, unmodified, through the gateway to real processes; what is measured of them."""

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from support.processes.cluster import Cluster
from support.processes.served_models import CHAT, USER, counters, listed, make_key, serve

if TYPE_CHECKING:  # their imports take two seconds in each worker that only collects tests
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

SAID = "[simulate tokens=5]"
TOLD: Any = [{"role": "user", "content": SAID}]
TEXT = "The quick brown fox jumps"
LOOK: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


async def test_official_clients_find_what_they_know(cluster: Cluster) -> None:
    from anthropic import AsyncAnthropic  # noqa: PLC0415 - see above
    from openai import AsyncOpenAI  # noqa: PLC0415

    serving = {"aliases": ["gpt-4o-mini"], "adapters": {"support": "path:/lora/support"}}
    await serve(cluster, chat={"replicas": 2, "serving": serving})
    await listed(cluster, "chat", "support")
    key = await make_key(cluster)
    async with AsyncOpenAI(base_url=f"{cluster.url}/v1", api_key=key, max_retries=0) as openai:
        await openai_chats(openai)
        await openai_does_the_rest(openai)
    async with AsyncAnthropic(base_url=cluster.url, api_key=key, max_retries=0) as anthropic:
        await anthropic_chats(anthropic)
    await they_were_measured(cluster, key)


async def openai_chats(openai: "AsyncOpenAI") -> None:
    for name in ("chat", "gpt-4o-mini", "support"):
        whole = await openai.chat.completions.create(model=name, messages=TOLD)
        assert (whole.choices[0].message.content, whole.usage and whole.usage.completion_tokens) == (TEXT, 5)
    stream = await openai.chat.completions.create(model="chat", messages=TOLD, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    assert all(chunk.usage is None for chunk in chunks), "G50: the client did not ask for it"
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = [chunk async for chunk in await openai.chat.completions.create(model="chat", messages=TOLD, **options)]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5
    called = await openai.chat.completions.create(model="chat", messages=TOLD, tools=[LOOK])
    (call,) = called.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, called.choices[0].finish_reason) == ("look", "tool_calls")
    assert SAID in json.loads(call.function.arguments).values()
    result = {"role": "tool", "tool_call_id": call.id, "content": "seen"}
    turns: Any = [*TOLD, called.choices[0].message.to_dict(), result]
    answered = await openai.chat.completions.create(model="chat", messages=turns, tools=[LOOK])
    assert answered.choices[0].finish_reason == "stop", "the tool's result came to the engine"
    stream = await openai.chat.completions.create(model="chat", messages=TOLD, tools=[LOOK], stream=True)
    deltas = [chunk.choices[0].delta async for chunk in stream if chunk.choices]
    assert [call.function.name for delta in deltas for call in delta.tool_calls or [] if call.function.name] == ["look"]


async def openai_does_the_rest(openai: "AsyncOpenAI") -> None:
    from openai import APIStatusError, NotFoundError  # noqa: PLC0415 - see above

    assert (await openai.completions.create(model="chat", prompt=SAID)).choices[0].text == TEXT
    assert (await openai.responses.create(model="chat", input=SAID)).output_text == TEXT
    kinds = [event.type async for event in await openai.responses.create(model="chat", input=SAID, stream=True)]
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    function: Any = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    (item,) = (await openai.responses.create(model="chat", input=SAID, tools=[function])).output
    assert item.type == "function_call"
    assert (item.name, SAID in json.loads(item.arguments).values()) == ("look", True)
    embedded = await openai.embeddings.create(model="chat", input=["a", "b"])
    assert [len(one.embedding) > 1 for one in embedded.data] == [True, True]
    heard = await openai.audio.transcriptions.create(model="chat", file=("a.wav", b"RIFF" * 1000), prompt=SAID)
    assert heard.text
    assert (await openai.images.generate(model="chat", prompt="x")).data
    models = [one.id async for one in openai.models.list()]
    assert models == ["chat", "gpt-4o-mini", "support"]
    assert (await openai.models.retrieve("support")).id == "support"
    with pytest.raises(NotFoundError) as missing:
        await openai.chat.completions.create(model="unknown", messages=TOLD)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(APIStatusError) as refused:
        await openai.chat.completions.create(
            model="chat", messages=[{"role": "user", "content": "[simulate refuse=429]"}]
        )
    assert refused.value.status_code == 429


async def anthropic_chats(anthropic: "AsyncAnthropic") -> None:
    from anthropic import NotFoundError  # noqa: PLC0415 - see above

    said: Any = {"model": "chat", "max_tokens": 20, "messages": TOLD}
    whole = await anthropic.messages.create(**said)
    assert (whole.content[0].type, whole.usage.output_tokens) == ("text", 5)
    async with anthropic.messages.stream(**said) as stream:
        assert await stream.get_final_text() == TEXT
    look: Any = {"name": "look", "input_schema": {"type": "object"}}
    used = await anthropic.messages.create(**said, tools=[look])
    assert used.stop_reason == "tool_use"
    (use,) = used.content
    assert use.type == "tool_use"
    assert (use.name, SAID in json.dumps(use.input)) == ("look", True)
    async with anthropic.messages.stream(**said, tools=[look]) as stream:
        (streamed,) = (await stream.get_final_message()).content
    assert streamed.type == "tool_use"
    assert (streamed.name, streamed.input) == (use.name, use.input)
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "seen"}
    turns: Any = [*TOLD, {"role": "assistant", "content": used.content}, {"role": "user", "content": [result]}]
    answered = await anthropic.messages.create(**said | {"messages": turns}, tools=[look])
    assert answered.content[0].type == "text", "the tool's result came to the engine"
    counted = await anthropic.messages.count_tokens(model="chat", messages=TOLD)
    assert counted.input_tokens > 0
    with pytest.raises(NotFoundError) as missing:
        await anthropic.messages.create(**said | {"model": "unknown"})
    body: Any = missing.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")
    assert body["request_id"] == missing.value.response.headers["x-request-id"]


async def they_were_measured(cluster: Cluster, key: str) -> None:
    async with cluster.session.get("/metrics") as answer:
        text = await answer.text()
    assert key not in text
    requests = Counter[tuple[str, str, str]]()
    for labels, value in re.findall(r"^gpuward_gateway_requests_total\{(.*?)\} (\S+)$", text, re.MULTILINE):
        found = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        requests[found["deployment"], found["endpoint"], found["status"]] += int(float(value))
    engines = await counters(cluster, "chat")
    by_path = sum((Counter(one["by_path"]) for one in engines), Counter[str]())
    for path, count in by_path.items():
        assert sum(n for (name, endpoint, _), n in requests.items() if (name, endpoint) == ("chat", path)) == count
    assert requests["chat", CHAT, "4xx"] == 1
    assert requests["", CHAT, "4xx"] == 1
    assert 'gpuward_gateway_tokens_total{deployment="chat",endpoint="/v1/chat/completions",kind="completion"' in text
    assert re.search(r"^gpuward_gateway_first_token_seconds_count\{.*\} [1-9]", text, re.MULTILINE)
    assert re.search(r"^gpuward_gateway_output_token_seconds_sum\{.*\} ", text, re.MULTILINE)
    before = len(re.findall(r"^gpuward_gateway_requests_total", text, re.MULTILINE))
    for n in range(20):  # a stranger and a careless client make no series
        await cluster.session.post(CHAT, json={"model": f"x{n}", "messages": USER})
        await cluster.session.post(f"/v1/x{n}", json={"model": "chat"}, headers={"Authorization": f"Bearer gpw_{n}"})
    async with cluster.session.get("/metrics") as answer:
        after = len(re.findall(r"^gpuward_gateway_requests_total", await answer.text(), re.MULTILINE))
    assert after <= before + 1
    async with cluster.session.post(CHAT, json={"model": "chat", "messages": TOLD}) as timed:
        spans = dict(re.findall(r"(\w+);dur=([\d.]+)", timed.headers["Server-Timing"]))
    assert spans.keys() == {"queue", "connect", "engine"}
    assert all(0 <= float(ms) < 20_000 for ms in spans.values())
    leaving = aiohttp.ClientTimeout(total=0.5)
    waits = [{"role": "user", "content": "[simulate wait=30]"}]
    with pytest.raises(TimeoutError):
        await cluster.session.post(CHAT, json={"model": "chat", "messages": waits}, timeout=leaving)

    async def is_counted() -> bool:
        async with cluster.session.get("/metrics") as answer:
            text = await answer.text()
        lines = re.findall(r'^gpuward_gateway_requests_total\{.*status="499".*\} (\S+)', text, re.MULTILINE)
        return [float(line) for line in lines] == [1.0]

    await cluster.until(is_counted, "G11: the client that left is counted")
