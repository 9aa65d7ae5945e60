"""Token counts from engines' answers, in whatever pieces they come."""

import gzip
import random
import zlib
from collections.abc import Callable
from dataclasses import astuple, fields, replace
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.live.key_use import Counts
from gateway.bodies.json_body import JsonBody, read_json
from gateway.bodies.parameters import Parameters
from gateway.requests.event_stream import CompleteEvents
from gateway.usage.answer_usage import AnswerUsage, Tokens
from gateway.usage.usage_option import options_with_usage, requests_usage, without_usage_chunk
from gateway.usage.usage_record import UsageBatches
from support.growth import assert_in_line, seconds

CHAT_USAGE = {"prompt_tokens": 12, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}
EXACT = Tokens(12, 4, 7)


def event(content: Any, name: str = "") -> bytes:
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + orjson.dumps(content) + b"\n\n"


def chunk(text: str | None, **more: Any) -> bytes:
    delta = {"content": text} if text is not None else {}
    return event({"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": None}], **more})


LAST = event({"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
USAGE_CHUNK = event({"id": "x", "choices": [], "usage": CHAT_USAGE})
DONE = b"data: [DONE]\n\n"
SEVEN = b"".join(chunk(f'a "usage" b{n}') for n in range(7))
CHAT = SEVEN + LAST + USAGE_CHUNK + DONE
MESSAGES = (
    event({"type": "message_start", "message": {"usage": {"input_tokens": 8, "cache_read_input_tokens": 4,
                                                          "output_tokens": 1}}}, "message_start")
    + b"".join(event({"type": "content_block_delta", "delta": {"text": "a"}}, "content_block_delta") for _ in range(7))
    + event({"type": "message_delta", "usage": {"output_tokens": 7}}, "message_delta")
)  # fmt: skip
RESPONSES = (
    7 * event({"type": "response.output_text.delta", "delta": "a"}, "response.output_text.delta")
    + event({"type": "response.completed", "response": {"usage": {
        "input_tokens": 12, "output_tokens": 7, "input_tokens_details": {"cached_tokens": 4}}}}, "response.completed")
)  # fmt: skip
WHOLE = orjson.dumps({"choices": [{"message": {"content": 'x "usage": {'}}], "usage": CHAT_USAGE})
GZIP, DEFLATE = "gzip", "deflate"


def pieces(data: bytes, seed: int) -> list[bytes]:
    """The data in random pieces; the first seeds: whole, and byte by byte."""
    if seed == 0:
        return [data]
    chance = random.Random(seed)  # noqa: S311 - a test
    found = []
    while data:
        size = 1 if seed == 1 else chance.randint(1, 60)
        found.append(data[:size])
        data = data[size:]
    return found


def read(data: bytes, seed: int = 0, *, events: bool, encoding: str = "", request: int = 400) -> AnswerUsage:
    usage = AnswerUsage(request, events=events, encoding=encoding)
    for piece in pieces(data, seed):
        usage.feed(piece)
    return usage


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("encoding", ["", "identity", GZIP, DEFLATE])
@pytest.mark.parametrize(("answer", "events"), [(CHAT, True), (MESSAGES, True), (RESPONSES, True), (WHOLE, False)])
def test_what_the_engine_tells_is_exact(answer: bytes, events: bool, encoding: str, seed: int) -> None:
    packed = {GZIP: gzip.compress, DEFLATE: zlib.compress}.get(encoding, bytes)(answer)
    assert read(packed, seed, events=events, encoding=encoding).tokens() == EXACT


LINE_ENDS = [b"\n", b"\r\n", b"\r"]


@pytest.mark.parametrize("line_end", LINE_ENDS)
def test_lines_may_end_in_any_way(line_end: bytes) -> None:
    for answer in (CHAT, MESSAGES, RESPONSES):
        assert read(answer.replace(b"\n", line_end), 3, events=True).tokens() == EXACT


@pytest.mark.parametrize("line_end", LINE_ENDS)
@pytest.mark.parametrize("answer", [CHAT, MESSAGES, RESPONSES])
def test_counts_may_be_split_at_any_byte(answer: bytes, line_end: bytes) -> None:
    """Or at any two; behind a line that is too long, too."""
    answer = answer.replace(b"\n", line_end)
    for at in range(len(answer)):
        usage = AnswerUsage(400, events=True)
        usage.feed(answer[:at])
        usage.feed(answer[at:])
        assert usage.tokens() == EXACT


@settings(deadline=None, max_examples=200)
@given(st.data(), st.sampled_from([CHAT, MESSAGES, RESPONSES]), st.sampled_from(LINE_ENDS), st.booleans())
def test_counts_are_found_and_hidden_whatever_the_pieces(
    data: st.DataObject, answer: bytes, line_end: bytes, begins_with_much: bool
) -> None:
    text = answer.replace(b"\n", line_end)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    usage, events, shown = AnswerUsage(400, events=True), CompleteEvents(), b""
    if begins_with_much:
        for piece in (*[b": " + b"x" * 2**18] * 5, 2 * line_end):
            usage.feed(piece)
    for begin, end in pairwise((0, *cuts, len(text))):
        usage.feed(text[begin:end])
        shown += without_usage_chunk(events.pass_on(text[begin:end]))
    assert usage.tokens() == EXACT
    assert shown + events.rest() == text.replace(USAGE_CHUNK.replace(b"\n", line_end), b"")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("answer", [SEVEN, SEVEN + LAST + DONE])
def test_what_the_engine_does_not_tell_is_estimated(answer: bytes, seed: int) -> None:
    assert read(answer, seed, events=True).tokens() == Tokens(100, 0, 7, estimated=True)


def test_messages_that_broke_off_have_an_exact_prompt_and_counted_deltas() -> None:
    begun = MESSAGES.partition(b"event: message_delta")[0]
    assert read(begun, 2, events=True).tokens() == Tokens(12, 4, 7, estimated=True)


def test_a_whole_answer_without_counts_is_estimated_by_size() -> None:
    answer = orjson.dumps({"choices": [{"message": {"content": "word " * 80}}]})
    tokens = read(answer, events=False).tokens()
    assert tokens.estimated
    assert tokens.prompt == 100
    assert tokens.completion == len(answer) // 4


def test_embeddings_have_a_prompt_alone() -> None:
    answer = orjson.dumps({"data": [{"embedding": [0.25] * 200_000}], "usage": {"prompt_tokens": 9, "total_tokens": 9}})
    usage = AnswerUsage(400, events=False, has_completion=False)
    for piece in pieces(answer, 0):
        usage.feed(piece)
    assert usage.tokens() == Tokens(9, 0, 0)


@pytest.mark.parametrize("has_completion", [True, False])
@pytest.mark.parametrize("events", [True, False])
def test_a_total_alone_is_read(events: bool, has_completion: bool) -> None:
    answer = orjson.dumps({"choices": [{"text": "a"}], "usage": {"total_tokens": 70}})
    usage = AnswerUsage(400, events=events, has_completion=has_completion)
    usage.feed(b"data: " + answer + b"\n\n" if events else answer)
    tokens = usage.tokens()
    assert (tokens.prompt + tokens.completion, tokens.estimated) == (70, False)
    assert (tokens.completion > 0) == has_completion


@pytest.mark.parametrize("counts", [{"prompt_tokens": 9, "total_tokens": 12}, {"input_tokens": 9, "total_tokens": 12}])
def test_an_answers_tokens_are_the_total_without_those_of_the_prompt(counts: dict[str, int]) -> None:
    assert read(orjson.dumps({"usage": counts}), events=False).tokens() == Tokens(9, 0, 3)


@pytest.mark.parametrize("piece", [700, 65_536, 5_000_000])
@pytest.mark.parametrize("before", [{}, {"object": "list", "model": "m", "why": '"usage": {"total_tokens": 1}'}])
def test_counts_at_the_beginning_of_a_long_answer_are_read(piece: int, before: dict[str, str]) -> None:
    answer = orjson.dumps({**before, "usage": {"total_tokens": 9}, "data": ["x" * 4_000_000]})
    usage = AnswerUsage(400, events=False, has_completion=False)
    for at in range(0, len(answer), piece):
        usage.feed(answer[at : at + piece])
    assert usage.tokens() == Tokens(9, 0, 0)


def test_large_answers_keep_their_end_alone() -> None:
    answer = orjson.dumps({"data": ["x" * 3_000_000], "usage": {"prompt_tokens": 9, "completion_tokens": 3}})
    usage = AnswerUsage(400, events=False)
    for at in range(0, len(answer), 65536):
        usage.feed(answer[at : at + 65536])
        assert len(usage._end) <= 2**21
    assert usage.tokens() == Tokens(9, 0, 3)


@pytest.mark.parametrize(
    "answer", [b"", b"\x1f\x8bnonsense", b'{"usage": 7}', b'{"usage": {"prompt_tokens": -1}}', b'{"usage": {"prompt']
)
@pytest.mark.parametrize("events", [True, False])
@pytest.mark.parametrize("encoding", ["", "gzip", "br", "zstd"])
def test_nonsense_is_estimated(answer: bytes, events: bool, encoding: str) -> None:
    tokens = read(answer, events=events, encoding=encoding).tokens()
    assert tokens.estimated
    assert tokens.prompt == 100


def test_a_bomb_is_not_unpacked_without_end() -> None:
    bomb = gzip.compress(b"\0" * (80 * 2**20))
    assert read(bomb, events=False, encoding=GZIP).tokens().estimated
    usage = AnswerUsage(400, events=True, encoding=GZIP)
    usage.feed(bomb)
    assert usage._unpacked <= 2**21 + 2**18  # of one piece
    assert usage.tokens().estimated


FLOODS = {
    "usage": b'data:{"usage":{}}\n\n',
    "counts": b'data:{"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n',
    "names": b"event:\n\n",
    "lines": b"event:\ndata:\n\n",
    "blanks": b"\r" * 50 + b'"usage"\n\n',
}


@pytest.mark.parametrize("name", FLOODS)
def test_events_cost_a_few_searches_whatever_is_in_them(name: str) -> None:
    piece = FLOODS[name] * (2**17 // len(FLOODS[name]))

    def searched() -> None:
        for _ in range(32):
            for word in (b"usage", b"event", b"data", b"choices", b"error"):
                piece.count(word)

    def read_plain() -> None:
        usage = AnswerUsage(400, events=True)
        for _ in range(32):
            usage.feed(piece)

    def packed() -> None:
        pack, unpack = zlib.compressobj(wbits=31), zlib.decompressobj(wbits=31)
        for _ in range(32):
            unpack.decompress(pack.compress(piece) + pack.flush(zlib.Z_SYNC_FLUSH))

    def read_packed() -> None:
        pack, usage = zlib.compressobj(wbits=31), AnswerUsage(400, events=True, encoding=GZIP)
        for _ in range(32):
            usage.feed(pack.compress(piece) + pack.flush(zlib.Z_SYNC_FLUSH))
        assert not usage._blind

    searches_s = seconds(searched)
    assert seconds(read_plain) < 2 * searches_s
    assert seconds(read_packed) < 3 * searches_s + 1.5 * seconds(packed)  # whatever packing costs this Python


def test_of_a_piece_of_many_counts_the_first_and_the_last_ones_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    loads = orjson.loads
    monkeypatch.setattr(orjson, "loads", lambda text: parsed.append(text) or loads(text))
    begun = event({"message": {"usage": {"input_tokens": 8, "cache_read_input_tokens": 4}}})
    middle = b"".join(event({"usage": {"output_tokens": n}}) for n in range(10_000))
    for line_end in LINE_ENDS:
        parsed.clear()
        answer = (begun + middle + event({"usage": {"output_tokens": 7}}) + event({"usage": None})).replace(
            b"\n", line_end
        )
        assert read(answer, events=True).tokens() == EXACT
        assert 2 < len(parsed) <= 10


def test_what_is_parsed_of_a_packed_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    loads = orjson.loads
    monkeypatch.setattr(orjson, "loads", lambda text: parsed.append(len(text)) or loads(text))
    pack, usage, packed = zlib.compressobj(9, wbits=31), AnswerUsage(400, events=True, encoding=GZIP), 0
    for _ in range(40):
        piece = pack.compress(event({"usage": [[]] * 80_000})) + pack.flush(zlib.Z_SYNC_FLUSH)
        packed += len(piece)
        usage.feed(piece)
    assert sum(parsed) <= 2**20 + 16 * packed < 2 * 2**20
    assert usage.tokens().estimated


def test_what_comes_behind_the_end_of_a_packed_answer_is_not_kept() -> None:
    usage = AnswerUsage(400, events=False, encoding=GZIP)
    usage.feed(gzip.compress(WHOLE) + b"x" * 1000)
    for _ in range(10):
        usage.feed(b"x" * 65_536)
    assert usage._unpack is not None
    assert len(usage._unpack.unused_data) <= 1000
    assert usage.tokens() == EXACT


@pytest.mark.parametrize("events", [True, False])
@pytest.mark.parametrize("text", [b"x", b'"usage"', b"event: x\r\r"])
def test_an_answer_of_tiny_pieces_costs_in_line_with_its_length(text: bytes, events: bool) -> None:
    def of(number: int) -> Callable[[], None]:
        answer = [text[at % len(text) :][:1] for at in range(number)]

        def feed() -> None:
            usage = AnswerUsage(400, events)
            for piece in answer:
                usage.feed(piece)
            usage.tokens()

        return feed

    assert_in_line(of, 25_000)


@pytest.mark.parametrize("piece", [b"x" * 2**16, b'{"usage":' * 7000, b"\r" * 2**16], ids=["text", "usage", "blank"])
@pytest.mark.parametrize("events", [True, False])
def test_what_is_kept_of_an_answer_is_bounded(piece: bytes, events: bool) -> None:
    usage = AnswerUsage(400, events)
    for _ in range(160):  # 10 MiB
        usage.feed(piece)
        assert usage._partial is None or len(usage._partial.held) <= 2**20
        assert len(usage._end) <= 2**21
    assert usage.tokens().estimated


@pytest.mark.parametrize("end", [b"{" * 5000, b'{"a":' * 1000, b'{"usage": {"a": ' + b"}" * 5000, b""])
def test_an_end_that_cannot_be_read_is_estimated(end: bytes) -> None:
    usage = AnswerUsage(400, events=False)
    usage.feed(b"x" * 2**21)
    usage.feed(b'"usage": ' + end)
    assert usage.tokens().estimated


def test_an_error_event_is_seen() -> None:
    assert read(SEVEN + event({"error": {"code": "engine_died"}}), events=True).failed
    assert not read(CHAT, events=True).failed


@pytest.mark.parametrize(
    ("path", "content", "asks"),
    [
        ("/v1/chat/completions", {"stream": True}, True),
        ("/v1/completions", {"stream": True, "stream_options": None}, True),
        ("/v1/chat/completions", {"stream": True, "stream_options": {"include_usage": False}}, True),
        ("/v1/chat/completions", {"stream": True, "stream_options": {"include_usage": True}}, False),
        ("/v1/chat/completions", {"stream": True, "stream_options": 7}, False),
        ("/v1/chat/completions", {"stream": False}, False),
        *(
            ("/v1/chat/completions", {"stream": one}, True) for one in ("true", "Yes", "1", 1, 1.0)
        ),  # as engines read it
        *(("/v1/chat/completions", {"stream": one}, False) for one in ("false", "2", 0, 2, None, [], {})),
        ("/v1/chat/completions", {}, False),
        ("/v1/responses", {"stream": True}, False),
        ("/v1/messages", {"stream": True}, False),
    ],
)
def test_when_counts_are_asked_for(path: str, content: dict[str, Any], asks: bool) -> None:
    parameters = Parameters("m", content.get("stream"), content.get("stream_options"))
    assert requests_usage(path, parameters) is asks


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"stream":true ', b'"stream":true,"stream_options":{"include_usage":true}'),
        (
            '"s": "}", "ü": 0.10, "stream_options": {"x": 1} , "stream":true'.encode(),
            '"s":"}","ü":0.10,"stream_options":{"x":1,"include_usage":true},"stream":true'.encode(),
        ),
        (b'"stream_options":null,"t":1', b'"stream_options":{"include_usage":true},"t":1'),
        (b'"stream_options": {"a": "\xc3\xbc"}', b'"stream_options":{"a":"\xc3\xbc","include_usage":true}'),
        (
            b'"stream_options":{},"x":{"stream_options":{}}',
            b'"stream_options":{"include_usage":true},"x":{"stream_options":{}}',
        ),
        (
            b'"x":[{"stream_options":1}],"stream_options":{"stream_options":2}',
            b'"x":[{"stream_options":1}],"stream_options":{"stream_options":2,"include_usage":true}',
        ),
        (b'"stream_options":7,"stream_options":{}', b'"stream_options":{"include_usage":true}'),
    ],
)
def test_counts_are_requested_and_no_other_value_changes(before: bytes, after: bytes) -> None:
    body = b'{"model":"m",%b}' % before
    parameters = read_json(body)
    (sent,) = JsonBody(parameters, body).with_values({"stream_options": options_with_usage(parameters)})
    assert sent == b'{"model":"m",%b}' % after


def test_the_additional_chunk_is_hidden_and_nothing_else() -> None:
    assert without_usage_chunk(CHAT) == SEVEN + LAST + DONE
    assert without_usage_chunk(CHAT.replace(b"\n", b"\r\n")) == (SEVEN + LAST + DONE).replace(b"\n", b"\r\n")
    with_counts = chunk("a", usage=CHAT_USAGE) + b": comment\n\n"
    assert without_usage_chunk(with_counts) == with_counts


def test_counts_add_up_in_every_field() -> None:
    counts = Counts(*range(1, len(fields(Counts)) + 1))
    batches = UsageBatches()
    for _ in range(2):
        batches.add("k", "/v1/chat", "m", replace(counts))
    batch = batches.next()
    assert batch is not None
    assert astuple(batch[1][0].counts) == tuple(2 * value for value in astuple(counts))
