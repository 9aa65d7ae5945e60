"""Agents and controllers of protocols 4 and 5: what they were recorded to send is read whole, and answered alike.

`recorded/protocol_N/` holds one message of each kind and shape from a run of that protocol's controller and agent, by
the commit. Readers ignore keys that they do not know, so a field that loses its name would be lost without a word: here
each message must come out as it went in.
"""

from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest

from controller.hub.agent_messages import read_message
from controller.hub.session import for_agent
from schemas import wire
from schemas.wire import Wire, controller_message, encode
from schemas.wire.protocol import HIGHEST_PROTOCOL, LOWEST_PROTOCOL

RECORDED = Path(__file__).parent / "recorded"
Json = Any
KINDS = {("agent", kind) for kind in ("hello", "heartbeat", "process", "samples", "result", "goodbye")} | {
    ("controller", kind) for kind in ("welcome", "command", "report_ack", "samples_ack")
}


def lines(protocol: int) -> list[Json]:
    files = sorted((RECORDED / f"protocol_{protocol}").glob("*.jsonl"))
    return [orjson.loads(line) for file in files for line in file.read_bytes().splitlines()]


def recorded(by: str) -> list[Any]:
    return [
        pytest.param(protocol, line["message"], id=f"{protocol}-{line['message'].get('type', by)}-{n}")
        for protocol in (4, 5)
        for n, line in enumerate(lines(protocol))
        if line["by"] == by
    ]


def with_what_came_since(message: Json, written: Json) -> Json:
    """What is written now, without fields that came later in the same protocol: they have their default."""
    if isinstance(message, dict) and isinstance(written, dict):
        return {key: with_what_came_since(inner, written.get(key)) for key, inner in message.items()}
    if isinstance(message, list) and isinstance(written, list) and len(message) == len(written):
        return [with_what_came_since(*pair) for pair in zip(message, written, strict=True)]
    return written


@pytest.mark.parametrize("protocol", [4, 5])
def test_every_kind_of_message_was_recorded(protocol: int) -> None:
    kinds = {(line["by"], line["message"].get("type")) for line in lines(protocol)}
    assert kinds >= KINDS | {("agent-join", None), ("controller-join", None)}
    (hello,) = {line["message"]["protocol"] for line in lines(protocol) if line["message"].get("type") == "hello"}
    assert hello == protocol


def test_every_protocol_that_is_spoken_was_recorded() -> None:
    """A new one gets its recording: `test_protocol_3.py` has the oldest."""
    assert (LOWEST_PROTOCOL, HIGHEST_PROTOCOL) == (3, 5)


@pytest.mark.parametrize(("protocol", "message"), recorded("agent"))
def test_a_message_of_such_an_agent_is_read_whole(protocol: int, message: Json) -> None:
    parsed = read_message(orjson.dumps(message).decode())
    assert with_what_came_since(message, orjson.loads(encode(parsed, protocol))) == message


@pytest.mark.parametrize(("protocol", "message"), recorded("controller"))
def test_a_message_of_such_a_controller_is_read_whole(protocol: int, message: Json) -> None:
    parsed = controller_message.decode(orjson.dumps(message))
    assert with_what_came_since(message, orjson.loads(encode(parsed, protocol))) == message
    assert for_agent(parsed, protocol) == parsed, "an agent of that protocol is told the same"


@pytest.mark.parametrize(("by", "model"), [("agent-join", wire.JoinRequest), ("controller-join", wire.JoinResponse)])
def test_such_a_join_is_read_whole(by: str, model: type[Wire]) -> None:
    for protocol, message in (param.values for param in recorded(by)):
        written = orjson.loads(encode(msgspec.convert(message, model), LOWEST_PROTOCOL))
        assert with_what_came_since(message, written) == message, protocol
