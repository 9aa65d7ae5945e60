"""The clients of OpenAI and Anthropic, unmodified, with the simulated engine."""

import json
from collections.abc import AsyncIterator

import pytest
from anthropic import AsyncAnthropic
from anthropic import NotFoundError as AnthropicNotFoundError
from openai import AsyncOpenAI, BadRequestError, InternalServerError, NotFoundError

from support.processes.simulated_engine import SimulatedEngine, simulated_engine

FUNCTION = {"name": "weather", "parameters": {"type": "object", "properties": {"echo": {"type": "string"}}}}
USER = {"role": "user", "content": "How is it in Oslo?"}


@pytest.fixture
async def engine() -> AsyncIterator[SimulatedEngine]:
    async with simulated_engine("--served-model-name", "demo") as started:
        yield started


@pytest.fixture
async def openai(engine: SimulatedEngine) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="x", max_retries=0, timeout=30) as client:
        yield client


@pytest.fixture
async def anthropic(engine: SimulatedEngine) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=engine.url, api_key="x", max_retries=0, timeout=30) as client:
        yield client


async def test_chat(openai: AsyncOpenAI) -> None:
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


async def test_tool_calls(openai: AsyncOpenAI) -> None:
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
    assert (ended.choices[0].finish_reason, ended.choices[0].message.tool_calls) == ("length", None)


async def test_responses(openai: AsyncOpenAI) -> None:
    whole = await openai.responses.create(model="demo", input="[simulate tokens=4]", instructions="Be brief.")
    assert (whole.status, whole.output_text, whole.usage.output_tokens) == ("completed", "The quick brown fox", 4)
    async with openai.responses.stream(model="demo", input=[USER], max_output_tokens=2) as stream:
        kinds = [event.type async for event in stream]
    assert kinds == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.delta", "response.output_text.delta", "response.output_text.done",
        "response.content_part.done", "response.output_item.done", "response.incomplete",
    ]  # fmt: skip
    async with openai.responses.stream(model="demo", input=[USER], tools=[{"type": "function", **FUNCTION}]) as stream:
        final = await stream.get_final_response()
    (call,) = final.output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "weather", {"echo": USER["content"]})


async def test_embeddings(openai: AsyncOpenAI) -> None:
    packed = await openai.embeddings.create(model="demo", input=["a", "b"])  # as base64, the client's default
    plain = await openai.embeddings.create(model="demo", input=["a", "b"], encoding_format="float")
    assert [len(item.embedding) for item in packed.data] == [8, 8]
    for one, other in zip(packed.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
    assert packed.data[0].embedding != packed.data[1].embedding


async def test_sound_and_images(openai: AsyncOpenAI) -> None:
    speech = await openai.audio.speech.create(model="demo", voice="alloy", input="one two")
    assert speech.content[:4] == b"RIFF"
    sound = ("speech.wav", speech.content)
    heard = await openai.audio.transcriptions.create(model="demo", file=sound, prompt="[simulate tokens=2]")
    assert heard.text == "The quick"
    stream = await openai.audio.transcriptions.create(model="demo", file=sound, stream=True)
    kinds = [event.type async for event in stream]
    assert kinds == ["transcript.text.delta"] * 16 + ["transcript.text.done"]
    with pytest.deprecated_call():  # by the client
        assert (await openai.audio.translations.create(model="demo", file=sound)).text.startswith("The quick")
    image = await openai.images.generate(model="demo", prompt="a fox", n=2)
    assert len(image.data) == 2
    edited = await openai.images.edit(model="demo", image=("fox.png", b"png"), prompt="a dog")
    assert edited.data[0].b64_json == image.data[0].b64_json


async def test_messages(anthropic: AsyncAnthropic) -> None:
    whole = await anthropic.messages.create(model="demo", max_tokens=3, messages=[USER], system="Be brief.")
    assert (whole.content[0].text, whole.stop_reason) == ("The quick brown", "max_tokens")
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (7, 3)
    async with anthropic.messages.stream(model="demo", max_tokens=3, messages=[USER]) as stream:
        assert "".join([text async for text in stream.text_stream]) == "The quick brown"
        assert (await stream.get_final_message()).usage.output_tokens == 3
    count = await anthropic.messages.count_tokens(model="demo", messages=[USER])
    assert count.input_tokens == 5
    tools = [{"name": "weather", "input_schema": {"type": "object"}}]
    used = await anthropic.messages.create(model="demo", max_tokens=99, messages=[USER], tools=tools)
    async with anthropic.messages.stream(model="demo", max_tokens=99, messages=[USER], tools=tools) as stream:
        streamed = await stream.get_final_message()
    for message in (used, streamed):
        (block,) = message.content
        assert (message.stop_reason, block.name, block.input) == ("tool_use", "weather", {"echo": USER["content"]})


async def test_errors(openai: AsyncOpenAI, anthropic: AsyncAnthropic) -> None:
    with pytest.raises(NotFoundError):
        await openai.chat.completions.create(model="other", messages=[USER])
    with pytest.raises(BadRequestError) as invalid:
        await openai.chat.completions.create(model="demo", messages=[])
    assert invalid.value.param == "messages"
    with pytest.raises(InternalServerError):
        await openai.responses.create(model="demo", input="[simulate refuse=503]")
    with pytest.raises(AnthropicNotFoundError) as unknown:
        await anthropic.messages.create(model="other", max_tokens=1, messages=[USER])
    assert unknown.value.body["error"]["type"] == "not_found_error"
