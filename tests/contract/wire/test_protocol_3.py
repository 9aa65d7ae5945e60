"""Agents and controllers from before protocols were negotiated: what they send is read, and what is sent they can read.

`recorded/` holds one message of each kind and shape from a run of that version's controller and agent, by the commit.
`protocol_3.py` holds the models that they read with.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest
from pydantic import TypeAdapter

from contract.wire import protocol_3
from controller.hub.older_agents import for_agent
from controller.hub.validate import parse_message
from schemas import wire
from schemas.wire import Command, StartOrder, Wire, agent_message, controller_message, encode
from schemas.wire.base import Since
from schemas.wire.messages import AgentMessage, ControllerMessage

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.jsonl"))
OLD = 3
Json = Any
_TEXT_KEYS = {"title", "description", "default", "additionalProperties"}  # of a JSON schema: no matter of the wire


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
    parsed = parse_message(orjson.dumps(message).decode())
    assert orjson.loads(encode(parsed, OLD)) == message


@pytest.mark.parametrize("message", recorded("controller"))
def test_a_message_of_an_old_controller_is_read(message: Json) -> None:
    parsed = controller_message.validate_json(orjson.dumps(message))
    assert orjson.loads(encode(parsed, OLD)) == message


@pytest.mark.parametrize(("by", "model"), [("agent-join", wire.JoinRequest), ("controller-join", wire.JoinResponse)])
def test_an_old_join_is_read(by: str, model: type[Wire]) -> None:
    for (message,) in (param.values for param in recorded(by)):
        assert orjson.loads(encode(model.model_validate(message), OLD)) == message


def _schema(adapter: TypeAdapter[Any]) -> Json:
    """The JSON schema without texts, and without what came after protocol 3."""
    schema = _without_later_messages(adapter.json_schema())
    for name, definition in schema.get("$defs", {}).items():
        model = getattr(wire, name, None)
        for field in _later_fields(model):
            definition["properties"].pop(field, None)
    return _without_texts(_without_unused(schema))


def _without_later_messages(schema: Json) -> Json:
    """Without the kinds of messages that older peers are not sent."""
    later = {f"#/$defs/{name}" for name in schema.get("$defs", {}) if getattr(wire, name, Wire).since > OLD}
    if "oneOf" not in schema:
        return schema
    kinds = {kind: ref for kind, ref in schema["discriminator"]["mapping"].items() if ref not in later}
    one_of = [one for one in schema["oneOf"] if one["$ref"] not in later]
    return {**schema, "oneOf": one_of, "discriminator": {**schema["discriminator"], "mapping": kinds}}


def test_a_later_message_is_not_sent_to_an_older_peer() -> None:
    message = wire.NewCredential(credential="c")
    with pytest.raises(AssertionError, match="protocol 5"):
        encode(message, message.since - 1)


def _without_unused(schema: Json) -> Json:
    """Without the models that only later fields have."""
    defs = schema.get("$defs", {})
    rest = {key: value for key, value in schema.items() if key != "$defs"}
    texts, used = [orjson.dumps(rest).decode()], set()
    while texts:
        text = texts.pop()
        new = {name for name in defs if name not in used and f'"#/$defs/{name}"' in text}
        used |= new
        texts += [orjson.dumps(defs[name]).decode() for name in new]
    return {**rest, "$defs": {name: defs[name] for name in defs if name in used}} if defs else rest


def _later_fields(model: Any) -> Iterator[str]:
    if isinstance(model, type) and issubclass(model, Wire):
        for name, field in model.model_fields.items():
            if any(isinstance(mark, Since) and mark.protocol > OLD for mark in field.metadata):
                yield name


def _without_texts(schema: Json) -> Json:
    if isinstance(schema, list):
        return [_without_texts(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _without_texts(value) for name, value in inner.items()}
        if key in ("properties", "$defs")
        else _without_texts(inner)
        for key, inner in schema.items()
        if key not in _TEXT_KEYS
    }


SAME = "a new field is marked Since(4) or later; new values and types wait for a peer that knows them (older_agents.py)"


@pytest.mark.parametrize(
    ("new", "old"),
    [
        pytest.param(agent_message, protocol_3.agent_message, id="to an old controller"),
        pytest.param(controller_message, protocol_3.controller_message, id="to an old agent"),
        pytest.param(TypeAdapter(wire.JoinRequest), TypeAdapter(protocol_3.JoinRequest), id="join"),
        pytest.param(TypeAdapter(wire.JoinResponse), TypeAdapter(protocol_3.JoinResponse), id="join's answer"),
    ],
)
def test_what_is_sent_in_protocol_3_has_its_fields_and_types(new: TypeAdapter[Any], old: TypeAdapter[Any]) -> None:
    assert _schema(new) == _schema(old), SAME


@pytest.mark.parametrize("message", [*recorded("agent"), *recorded("controller")])
def test_keys_that_are_not_known_are_ignored_at_every_depth(message: Json) -> None:
    adapter = agent_message if message["type"] in _types(AgentMessage) else controller_message
    before = adapter.validate_python(message, strict=False)
    assert adapter.validate_json(orjson.dumps(_with_unknown_keys(message))) == before


def _types(union: Any) -> set[str]:
    return {model.model_fields["type"].default for model in get_args(get_args(union)[0])}


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
