"""Each endpoint of the simulated engine: what it refuses, what it answers, and its events."""

import json
from typing import Any

import pytest

from agent.simulated_engine.endpoints import ENDPOINTS
from agent.simulated_engine.errors import BadRequestError
from agent.simulated_engine.generation import Generation
from agent.simulated_engine.multipart import FormData
from support.processes.simulated_engine import events

USER = [{"role": "user", "content": "one two"}]
TOOL = {"name": "look", "parameters": {}}
FILE = FormData({"model": "m", "prompt": "p"}, [{"name": "file", "bytes": 3, "sha256": "s"}])
IMAGE = FormData({"model": "m", "prompt": "p", "n": "2"}, [{"name": "image", "bytes": 3, "sha256": "s"}])


def answer(path: str, content: Any, **generation: Any) -> Any:
    endpoint = ENDPOINTS[path]
    ask = endpoint.ask({"model": "m", **content} if isinstance(content, dict) else content)
    made = endpoint.form(
        Generation("1", 0, ask, generation.pop("tokens", 2 if endpoint.generates else 0), **generation)
    )
    return json.loads(made.whole())


def stream(path: str, content: dict[str, Any], tokens: int = 2, **generation: Any) -> list[tuple[str, Any]]:
    endpoint = ENDPOINTS[path]
    form = endpoint.form(
        Generation("1", 0, endpoint.ask({"model": "m", "stream": True, **content}), tokens, **generation)
    )
    return events((form.opening() + b"".join(form.token(i) for i in range(tokens)) + form.closing()).decode())


def test_all_paths_are_there() -> None:
    v1 = [
        "chat/completions",
        "completions",
        "responses",
        "messages",
        "messages/count_tokens",
        "embeddings",
        "rerank",
        "score",
        "classify",
        "pooling",
        "tokenize",
        "detokenize",
        "audio/speech",
        "audio/transcriptions",
        "audio/translations",
        "images/generations",
        "images/edits",
    ]
    both = ["rerank", "score", "classify", "pooling", "tokenize", "detokenize"]
    assert set(ENDPOINTS) == {f"/v1/{path}" for path in v1} | {f"/{path}" for path in both} | {
        "/v2/rerank",
        "/v2/embed",
    }


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": USER, "tools": [{}]}, "tools"),
        (
            "/v1/chat/completions",
            {"messages": USER, "tools": [{"function": TOOL}], "tool_choice": {"name": "x"}},
            "tool_choice",
        ),
        ("/v1/responses", {}, "input"),
        ("/v1/responses", {"input": [1]}, "input"),
        ("/v1/responses", {"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ("/v1/messages", {"messages": USER}, "max_tokens"),
        ("/v1/messages", {"max_tokens": 1}, "messages"),
        ("/v1/messages/count_tokens", {}, "messages"),
        ("/v1/embeddings", {}, "input"),
        ("/v1/embeddings", {"input": "x", "encoding_format": "int8"}, "encoding_format"),
        ("/v1/embeddings", {"input": "x", "dimensions": -1}, "dimensions"),
        ("/pooling", {"input": {}}, "input"),
        ("/v1/rerank", {"documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/score", {"text_1": "a"}, "text_2"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_2"),
        ("/classify", {"input": 1}, "input"),
        ("/tokenize", {}, "prompt"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/v1/audio/speech", {}, "input"),
        ("/v1/images/generations", {"prompt": "x", "n": 99}, "n"),
    ],
)
def test_invalid_requests_name_their_field(path: str, body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        ENDPOINTS[path].ask({"model": "m", **body})
    assert refused.value.param == param
    with pytest.raises(BadRequestError):
        ENDPOINTS[path].ask([])


@pytest.mark.parametrize(("path", "param"), [("/v1/audio/transcriptions", "file"), ("/v1/images/edits", "image")])
def test_a_form_without_its_file_is_refused(path: str, param: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        ENDPOINTS[path].ask(FormData({"model": "m", "prompt": "x"}))
    assert refused.value.param == param


def test_chat_streams_tokens_usage_and_an_end() -> None:
    body = {"messages": USER, "stream_options": {"include_usage": True}}
    chunks = stream("/v1/chat/completions", body, cached=1)
    assert chunks[-1] == ("", "[DONE]")
    (_, first), (_, second), (_, usage) = chunks[:-1]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "The"}
    assert (first["choices"][0]["finish_reason"], second["choices"][0]["finish_reason"]) == (None, "length")
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    assert first["monotonic_s"] <= second["monotonic_s"] <= usage["monotonic_s"]
    assert len(stream("/v1/chat/completions", body, usage=False)) == 3
    assert "usage" not in answer("/v1/chat/completions", body, usage=False)
    assert answer("/v1/chat/completions", body, complete=True)["choices"][0]["finish_reason"] == "stop"


def test_a_tool_that_is_not_wanted_is_not_called() -> None:
    asked = {"messages": USER, "tools": [{"function": TOOL}, {"function": {"name": "other"}}]}
    path = "/v1/chat/completions"
    for choice, called in (("none", None), ("auto", "look"), ({"function": {"name": "other"}}, "other")):
        message = answer(path, asked | {"tool_choice": choice}, tokens=9)["choices"][0]["message"]
        names = [call["function"]["name"] for call in message.get("tool_calls") or []]
        assert names == ([] if called is None else [called])


def test_the_events_of_a_message() -> None:
    came = stream(
        "/v1/messages", {"messages": USER, "max_tokens": 2, "system": [{"type": "text", "text": "s"}]}, cached=2
    )
    assert [name for name, _ in came] == [
        "message_start", "content_block_start", "ping", "content_block_delta", "content_block_delta",
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert all(name == content["type"] for name, content in came)
    usage = came[0][1]["message"]["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (1, 2)
    assert came[-2][1]["usage"] == {"output_tokens": 2}
    assert "usage" not in stream("/v1/messages", {"messages": USER, "max_tokens": 2}, usage=False)[-2][1]


def test_the_events_of_a_response_are_numbered() -> None:
    came = stream("/v1/responses", {"input": "x"}, complete=True)
    assert [content["sequence_number"] for _, content in came] == list(range(len(came)))
    assert came[-1][0] == "response.completed"
    assert came[-1][1]["response"]["usage"]["output_tokens"] == 2


def test_rankings_and_scores_follow_from_their_texts() -> None:
    documents = ["a", {"text": "b"}, "c"]
    ranked = answer("/rerank", {"query": "q", "documents": documents})
    scores = [result["relevance_score"] for result in ranked["results"]]
    assert scores == sorted(scores, reverse=True)
    assert len(answer("/v1/rerank", {"query": "q", "documents": documents, "top_n": 1})["results"]) == 1
    scored = answer("/v1/score", {"text_1": "q", "text_2": ["a", "b", "c"]})
    by_index = {result["index"]: result["relevance_score"] for result in ranked["results"]}
    assert {item["index"]: item["score"] for item in scored["data"]} == by_index
    assert ranked["usage"] == {"prompt_tokens": 4, "total_tokens": 4}


def test_classes_and_pools() -> None:
    classes = answer("/v1/classify", {"input": ["a", "b"]})["data"]
    assert all(sum(item["probs"]) == pytest.approx(1) for item in classes)
    pools = answer("/pooling", {"input": [[1, 2], [3]], "dimensions": 3})["data"]
    assert [len(item["data"]) for item in pools] == [3, 3]


def test_tokens_become_their_text_again() -> None:
    tokens = answer("/tokenize", {"prompt": "Ærø, 0.10"})
    assert tokens["count"] == len(tokens["tokens"])
    assert answer("/detokenize", {"tokens": tokens["tokens"]})["prompt"] == "Ærø, 0.10"


def test_forms_tell_which_files_came() -> None:
    heard = answer("/v1/audio/transcriptions", FILE)
    assert (heard["text"], heard["files"]) == ("The quick", FILE.files)
    drawn = answer("/v1/images/edits", IMAGE)
    assert (len(drawn["data"]), drawn["files"]) == (2, IMAGE.files)
    assert answer("/v1/messages/count_tokens", {"messages": USER})["input_tokens"] == 2
