"""Only whole events pass, so that an error event can follow at any time."""

import json
from collections.abc import Callable
from itertools import pairwise

import pytest

from gateway.errors import GatewayError, error_event
from gateway.requests.event_stream import MAX_HELD_BYTES, CompleteEvents, is_event_stream, is_plain
from support.growth import assert_in_line

STREAM = b"data: one\n\n: ping\r\n\r\nevent: x\ndata: two\n\ndata: three\r\rdata: [DONE]\n\n"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_all_bytes_pass_in_order(size: int) -> None:
    events = CompleteEvents()
    pieces = [events.pass_on(STREAM[at : at + size]) for at in range(0, len(STREAM), size)]
    assert b"".join((*pieces, events.rest())) == STREAM


@pytest.mark.parametrize("end", range(len(STREAM)))
def test_an_error_event_never_joins_a_begun_one(end: int) -> None:
    events = CompleteEvents()
    passed = events.pass_on(STREAM[:end]) + events.last(ended())
    whole, _, last = passed.rstrip(b"\n").rpartition(b"data: {")
    assert json.loads(b"{" + last)["error"]["code"] == "engine_died"
    assert STREAM.startswith(whole)
    assert whole in {STREAM[:at] for at in (0, *ends_of(STREAM))}


def ends_of(stream: bytes) -> list[int]:
    marks = (b"\n\n", b"\r\n\r\n", b"\r\r")
    return [at + len(mark) for mark in marks for at in range(len(stream)) if stream.startswith(mark, at)]


def test_an_event_beyond_the_bound_passes_in_pieces() -> None:
    events, piece = CompleteEvents(), b"data: " + b"x" * 50_000
    sizes = [len(events.pass_on(piece)) for _ in range(8)]
    assert sum(sizes) > 0, "it is not held for ever"
    assert all(sum(sizes[:one]) + MAX_HELD_BYTES >= len(piece) * one for one, _ in pairwise(range(9)))
    assert events.last(ended()).startswith(b"\n\ndata: {"), "it ends the piece first"


def test_a_line_without_an_end_passes_in_tiny_pieces() -> None:
    """What is held stays within its bound; the events behind it are whole again."""
    events, passed = CompleteEvents(), b""
    for came in range(8, MAX_HELD_BYTES * 5 // 2, 8):
        passed += events.pass_on(8 * b"x")
        assert came - len(passed) <= MAX_HELD_BYTES
    for byte in b"\n\ndata: one\n\ndata: t":
        passed += events.pass_on(bytes((byte,)))
    assert passed.lstrip(b"x") == b"\n\ndata: one\n\n"
    assert events.last(ended()).startswith(b"data: {"), "no event is begun"


@pytest.mark.parametrize("text", [b"x", b"x\r", b"\r\n", b"data: x\n\n"])
def test_a_stream_of_tiny_pieces_costs_in_line_with_its_length(text: bytes) -> None:
    def of(number: int) -> Callable[[], None]:
        pieces = [text[at % len(text) :][:1] for at in range(number)]

        def pass_on() -> None:
            events = CompleteEvents()
            for piece in pieces:
                events.pass_on(piece)

        return pass_on

    assert_in_line(of, 25_000)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(503, "overloaded_error"), (504, "timeout_error"), (502, "api_error"), (429, "rate_limit_error")],
)
def test_messages_have_an_error_event_of_their_own_form(status: int, kind: str) -> None:
    name, data = ended(b"/v1/messages", status).strip().split(b"\n")
    assert name == b"event: error"
    body = json.loads(data.removeprefix(b"data: "))
    assert (body["type"], body["error"]["type"], body["error"]["message"]) == ("error", kind, "it died")
    assert body["request_id"] == "id"


def test_responses_have_an_error_event_of_their_own_form() -> None:
    events = CompleteEvents()
    for number in (0, 41):
        text = b'event: x\ndata: {"sequence_number": %d, "delta": "\\"sequence_number\\": 7"}\n\n' % number
        for at in range(0, len(text), 9):
            events.pass_on(text[at : at + 9])
    name, data = ended(b"/v1/responses", number=events.next_number()).strip().split(b"\n")
    assert name == b"event: error"
    body = json.loads(data.removeprefix(b"data: "))
    assert {key: body[key] for key in ("type", "code", "message", "param", "sequence_number")} == {
        "type": "error",
        "code": "engine_died",
        "message": "it died",
        "param": None,
        "sequence_number": 42,
    }
    assert body["error"]["code"] == "engine_died", "where clients look for an error in any answer"


def ended(path: bytes = b"/v1/chat/completions", status: int = 502, number: int = 0) -> bytes:
    return error_event(GatewayError(status, "engine_died", "it died"), path, "id", number)


@pytest.mark.parametrize(
    ("content_type", "encoding", "found"),
    [
        ("text/event-stream", "", True),
        ("Text/Event-Stream; charset=utf-8", "identity", True),
        ("text/event-stream", "gzip", False),
        ("application/json", "", False),
        ("", "", False),
    ],
)
def test_which_answers_are_events(content_type: str, encoding: str, found: bool) -> None:
    assert (is_event_stream(content_type.encode()) and is_plain(encoding.encode())) is found
