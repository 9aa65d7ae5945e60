"""OpenAI's client, unmodified, with the simulated engine."""

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from support.processes.simulated_engine import SimulatedEngine, simulated_engine

if TYPE_CHECKING:  # its import takes most of a second in each worker that only collects tests
    from openai import AsyncOpenAI

FUNCTION = {"name": "weather", "parameters": {"type": "object", "properties": {"echo": {"type": "string"}}}}
TEXT = "The quick brown fox jumps over the lazy dog."
USER = {"role": "user", "content": "How is it in Oslo?"}


@pytest.fixture
async def engine() -> AsyncIterator[SimulatedEngine]:
    async with simulated_engine() as started:
        yield started


@pytest.fixture
async def openai(engine: SimulatedEngine) -> "AsyncIterator[AsyncOpenAI]":
    from openai import AsyncOpenAI  # noqa: PLC0415 - see above

    async with AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="x", max_retries=0, timeout=30) as client:
        yield client


async def test_chat(openai: "AsyncOpenAI") -> None:
    whole = await openai.chat.completions.create(model="demo", messages=[USER], max_tokens=3)
    assert (whole.choices[0].message.content, whole.usage.completion_tokens) == ("The quick brown", 3)
    stream = await openai.chat.completions.create(
        model="demo", messages=[USER], max_tokens=3, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content for c in chunks if c.choices) == "The quick brown"
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (5, 3)
    old = await openai.completions.create(model="demo", prompt="x", max_tokens=2)
    assert old.choices[0].text == "The quick"


async def test_tool_calls(openai: "AsyncOpenAI") -> None:
    tools = [{"type": "function", "function": FUNCTION}]
    whole = await openai.chat.completions.create(model="demo", messages=[USER], tools=tools)
    (call,) = whole.choices[0].message.tool_calls
    assert (whole.choices[0].finish_reason, call.function.name) == ("tool_calls", "weather")
    assert json.loads(call.function.arguments) == {"echo": USER["content"]}
    async with openai.chat.completions.stream(model="demo", messages=[USER], tools=tools) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.tool_calls[0].function.arguments == call.function.arguments
    said = [USER, whole.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    ended = await openai.chat.completions.create(model="demo", messages=said, tools=tools)
    assert (ended.choices[0].finish_reason, ended.choices[0].message.content) == ("stop", TEXT)


async def test_embeddings(openai: "AsyncOpenAI") -> None:
    packed = await openai.embeddings.create(model="demo", input=["a", "b"])  # as base64, the client's default
    plain = await openai.embeddings.create(model="demo", input=["a", "b"], encoding_format="float")
    assert [len(item.embedding) for item in packed.data] == [8, 8]
    for one, other in zip(packed.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
    assert packed.data[0].embedding != packed.data[1].embedding


async def test_an_answer_ends_by_itself_and_may_have_several_choices(openai: "AsyncOpenAI") -> None:
    whole = await openai.chat.completions.create(model="demo", messages=[USER], n=2)
    assert [choice.finish_reason for choice in whole.choices] == ["stop", "stop"]
    assert whole.choices[1].message.content == TEXT
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (5, 20)
    options = {"include_usage": True}
    stream = await openai.completions.create(model="demo", prompt="x", n=2, stream=True, stream_options=options)
    chunks = [chunk async for chunk in stream]
    for index in range(2):
        own = [chunk.choices[0] for chunk in chunks if chunk.choices and chunk.choices[0].index == index]
        assert ("".join(choice.text for choice in own), own[-1].finish_reason) == (TEXT, "stop")
    assert chunks[-1].usage == (await openai.completions.create(model="demo", prompt="x", n=2)).usage


async def test_errors(openai: "AsyncOpenAI") -> None:
    from openai import BadRequestError, NotFoundError  # noqa: PLC0415 - see above

    with pytest.raises(BadRequestError) as invalid:
        await openai.chat.completions.create(model="demo", messages=[])
    assert (invalid.value.param, invalid.value.type) == ("messages", "invalid_request_error")
    with pytest.raises(BadRequestError) as invalid:
        await openai.chat.completions.create(model="demo", messages=[USER], n=1000)
    assert invalid.value.param == "n"
    with pytest.raises(NotFoundError):
        await openai.responses.create(model="demo", input="x")
