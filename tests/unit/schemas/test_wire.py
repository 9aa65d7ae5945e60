"""Protocols in common, fields that older peers are not sent, and which models refuse unknown keys."""

import inspect
from types import ModuleType
from typing import Annotated

import msgspec
import pytest
from pydantic import BaseModel

from schemas import simulated, wire
from schemas.api import requests
from schemas.manifest import deployment, policy, resources
from schemas.wire import UNNAMED, Protocols, Since, Wire, encode, no_common_protocol, offered_protocols


@pytest.mark.parametrize(
    ("ours", "theirs", "common"),
    [
        ((3, 4), (3, 3), 3),
        ((3, 4), (4, 9), 4),
        ((3, 9), (4, 5), 5),
        ((3, 4), (5, 9), None),
        ((5, 9), (3, 4), None),
    ],
)
def test_the_common_protocol_is_the_highest_that_both_speak(
    ours: tuple[int, int], theirs: tuple[int, int], common: int | None
) -> None:
    assert Protocols(*ours).common(Protocols(*theirs)) == common
    assert Protocols(*theirs).common(Protocols(*ours)) == common


@pytest.mark.parametrize(
    ("names", "offered"),
    [
        ((), UNNAMED),
        (("",), UNNAMED),
        (("chat", "gpuward.v", "gpuward.v-4", "gpuward.v99999", "GPUWARD.v4"), UNNAMED),
        ((" gpuward.v5", "gpuward.v4 ", "chat"), Protocols(4, 5)),
        (("gpuward.v5",) + ("chat",) * 10_000 + ("gpuward.v9",), Protocols(5, 5)),
    ],
)
def test_what_a_peer_offers(names: tuple[str, ...], offered: Protocols) -> None:
    assert offered_protocols(names) == offered


def test_what_is_offered_is_understood() -> None:
    assert Protocols(3, 5).names() == ("gpuward.v5", "gpuward.v4", "gpuward.v3")
    assert offered_protocols(Protocols(3, 5).names()) == Protocols(3, 5)


def test_a_refusal_says_which_side_is_older() -> None:
    assert no_common_protocol(Protocols(3, 3), Protocols(4, 5)).endswith("install a newer gpuward for the agent")
    assert no_common_protocol(Protocols(6, 7), Protocols(4, 5)).endswith("install a newer gpuward for the controller")


class Inner(Wire, frozen=True, kw_only=True):
    old: int = 1
    new: Annotated[int | None, Since(4)] = 2


class Outer(Wire, frozen=True, kw_only=True, tag="outer"):
    many: tuple[Inner, ...] = (Inner(), Inner(old=3))
    named: dict[str, Inner | None] = msgspec.field(default_factory=lambda: {"a": Inner(), "b": None})
    maybe: Inner | None = Inner()
    one: Annotated[Inner, Since(5)] = Inner()


def test_a_peer_is_sent_the_fields_of_its_protocol_at_every_depth() -> None:
    old = '{"type":"outer","many":[{"old":1},{"old":3}],"named":{"a":{"old":1},"b":null},"maybe":{"old":1}}'
    assert encode(Outer(), 3) == old
    assert '"one"' not in encode(Outer(), 4)
    assert '"new":2' in encode(Outer(), 4)
    assert encode(Outer(), 5) == msgspec.json.encode(Outer()).decode()


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity"])
@pytest.mark.parametrize(
    "message",
    [
        (
            '{"type": "command", "command_id": 1, "term": 1, "instance": "i", "epoch": 1, "verb": "stop",'
            ' "stop": {"drain_time_s": NUMBER}}'
        ),
        '{"type": "welcome", "worker": "w", "session": 1, "term": 1, "proxy_secret": "s", "heartbeat_s": NUMBER}',
    ],
)
def test_an_agent_waits_for_no_infinite_time(message: str, number: str) -> None:
    assert wire.controller_message.decode(message.replace("NUMBER", "1.5"))
    with pytest.raises(msgspec.DecodeError):
        wire.controller_message.decode(message.replace("NUMBER", number))


def test_every_later_field_has_a_default_for_messages_of_older_peers() -> None:
    later = [
        (model, field)
        for model in _messages()
        for field in msgspec.structs.fields(model)
        if any(isinstance(mark, Since) for mark in getattr(field.type, "__metadata__", ()))
    ]
    assert later
    assert [f"{model.__name__}.{field.name}" for model, field in later if field.required] == []


@pytest.mark.parametrize("module", [deployment, policy, resources, simulated, requests])
def test_what_users_write_refuses_unknown_keys(module: ModuleType) -> None:
    written = [m for m in _models(module) if not m.__name__.endswith(("View", "Status", "Move", "Action"))]
    assert written
    assert [m.__name__ for m in written if m.model_config.get("extra") != "forbid"] == []


def test_what_agent_and_controller_exchange_ignores_unknown_keys() -> None:
    assert [m.__name__ for m in _messages() if m.__struct_config__.forbid_unknown_fields] == []


def _messages() -> list[type[Wire]]:
    return [value for _, value in inspect.getmembers(wire, inspect.isclass) if issubclass(value, Wire)]


def _models(module: ModuleType) -> list[type[BaseModel]]:
    found = [value for _, value in inspect.getmembers(module, inspect.isclass) if issubclass(value, BaseModel)]
    return [model for model in found if model is not BaseModel]
