"""Agents and controllers from before protocols were negotiated: what they send is read, and what is sent they can read.

`recorded/` holds one message of each kind and shape from a run of that version's controller and agent, by the commit.
`protocol_3.py` holds the models that they read with.
"""

from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import orjson
import pytest
from msgspec.json import Decoder
from pydantic import BaseModel

from contract.wire import protocol_3
from controller.hub.agent_messages import read_message
from controller.hub.session import for_agent
from schemas import wire
from schemas.wire import (
    AgentMessage,
    Command,
    ControllerMessage,
    StartOrder,
    Wire,
    agent_message,
    controller_message,
    encode,
)
from schemas.wire.base import Since

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.jsonl"))
OLD = 3
Json = Any


def recorded(by: str) -> list[Any]:
    lines = [(file.stem, orjson.loads(line)) for file in RECORDED for line in file.read_bytes().splitlines()]
    return [
        pytest.param(line["message"], id=f"{commit}-{line['message'].get('type', by)}-{n}")
        for n, (commit, line) in enumerate(lines)
        if line["by"] == by
    ]


def test_every_kind_of_message_was_recorded() -> None:
    assert [file.stem for file in RECORDED] == ["b26a3b6", "ce8d02c"]
    for file in RECORDED:
        lines = [orjson.loads(line) for line in file.read_bytes().splitlines()]
        kinds = {(line["by"], line["message"].get("type")) for line in lines}
        wanted = {("agent", kind) for kind in ("hello", "heartbeat", "process", "samples", "result", "goodbye")}
        wanted |= {("controller", kind) for kind in ("welcome", "command", "report_ack", "samples_ack")}
        assert kinds >= wanted | {("agent-join", None), ("controller-join", None)}


@pytest.mark.parametrize("message", recorded("agent"))
def test_a_message_of_an_old_agent_is_read(message: Json) -> None:
    parsed = read_message(orjson.dumps(message).decode())
    assert orjson.loads(encode(parsed, OLD)) == message


@pytest.mark.parametrize("message", recorded("controller"))
def test_a_message_of_an_old_controller_is_read(message: Json) -> None:
    parsed = controller_message.decode(orjson.dumps(message))
    assert orjson.loads(encode(parsed, OLD)) == message


@pytest.mark.parametrize(("by", "model"), [("agent-join", wire.JoinRequest), ("controller-join", wire.JoinResponse)])
def test_an_old_join_is_read(by: str, model: type[Wire]) -> None:
    for (message,) in (param.values for param in recorded(by)):
        assert orjson.loads(encode(msgspec.convert(message, model), OLD)) == message


def _shape(kind: Any) -> Json:
    """The fields and types, at every depth, without what came after protocol 3. Bounds of values are left out."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _shape(args[0])
    if origin in (Union, UnionType):
        return "one of", sorted((_shape(one) for one in args if not getattr(one, "since", 0) > OLD), key=repr)
    if origin is Literal:
        return "literal", sorted(args)
    if origin is not None:
        return {Mapping: dict}.get(origin, origin).__name__, [_shape(one) for one in args]
    if not isinstance(kind, type) or not issubclass(kind, BaseModel | Wire):
        return repr(kind)
    hints = get_type_hints(kind, include_extras=True)
    if issubclass(kind, Wire):
        tag = kind.__struct_config__.tag
        required = {field.name for field in msgspec.structs.fields(kind) if field.required}
        names = [name for name in kind.__struct_fields__ if not _is_later(hints[name])]
    else:
        tag = kind.model_fields["type"].default if "type" in kind.model_fields else None
        required = {name for name, field in kind.model_fields.items() if field.is_required()}
        names = [name for name in kind.model_fields if name != "type"]
    return kind.__name__, tag, {name: (_shape(hints[name]), name in required) for name in names}


def _is_later(hint: Any) -> bool:
    return any(isinstance(mark, Since) and mark.protocol > OLD for mark in getattr(hint, "__metadata__", ()))


def test_a_later_message_is_not_sent_to_an_older_peer() -> None:
    message = wire.NewCredential(credential="c")
    with pytest.raises(AssertionError, match="protocol 5"):
        encode(message, message.since - 1)


SAME = "a new field is marked Since(4) or later; new values and types wait for a peer that knows them (`for_agent`)"


@pytest.mark.parametrize(
    ("new", "old"),
    [
        pytest.param(AgentMessage, protocol_3.AgentMessage, id="to an old controller"),
        pytest.param(ControllerMessage, protocol_3.ControllerMessage, id="to an old agent"),
        pytest.param(wire.JoinRequest, protocol_3.JoinRequest, id="join"),
        pytest.param(wire.JoinResponse, protocol_3.JoinResponse, id="join's answer"),
    ],
)
def test_what_is_sent_in_protocol_3_has_its_fields_and_types(new: Any, old: Any) -> None:
    assert _shape(new) == _shape(old), SAME


@pytest.mark.parametrize("message", [*recorded("agent"), *recorded("controller")])
def test_keys_that_are_not_known_are_ignored_at_every_depth(message: Json) -> None:
    decoder: Decoder[Any] = agent_message if message["type"] in _types(AgentMessage) else controller_message
    before = decoder.decode(orjson.dumps(message))
    assert decoder.decode(orjson.dumps(_with_unknown_keys(message))) == before


def _types(union: Any) -> set[str]:
    return {model.__struct_config__.tag for model in get_args(union)}


def test_the_two_directions_have_no_type_in_common() -> None:
    assert not _types(AgentMessage) & _types(ControllerMessage)


def _with_unknown_keys(value: Json, *, free: bool = False) -> Json:
    """`free`: the keys are names that users chose, so one more would be a value."""
    if isinstance(value, list):
        return [_with_unknown_keys(one) for one in value]
    if not isinstance(value, dict):
        return value
    known = {
        key: _with_unknown_keys(inner, free=key in ("labels", "env", "utilization") and isinstance(inner, dict))
        for key, inner in value.items()
    }
    return known if free else {**known, "unknown_key": {"unknown": [1]}}


def _start(*argv: str) -> Command:
    start = StartOrder(
        deployment="d", deployment_uid="u", argv=argv, claims=(), needs_port=True, probe=None,
        start_timeout_s=1, drain_time_s=1,
    )  # fmt: skip
    return Command(command_id=1, term=1, instance="d-1", epoch=1, verb="start", start=start)


def test_an_old_agent_is_told_the_module_of_the_simulated_engine() -> None:
    command = _start("{simulated_engine}", "--port", "{port}")
    old = for_agent(command, 3)
    assert isinstance(old, Command)
    assert old.start is not None
    assert old.start.argv == ("{python}", "-m", "gpuward.agent.simulated_engine", "--port", "{port}")
    assert for_agent(command, 4) == command
    other = _start("vllm", "serve", "{simulated_engine}")
    assert for_agent(other, 3) == other
    protocol_3.controller_message.validate_json(encode(old, OLD))
