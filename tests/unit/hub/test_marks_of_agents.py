"""The marks of quoted lines are the hub's alone: no text of an agent brings one in, also where a refusal quotes it."""

import json
from typing import Any

import msgspec
import pytest

from controller.domain.access.redaction import BEGIN, END
from controller.hub.agent_messages import Doubts, MalformedMessageError, read_message
from rig.agent_messages import gpu
from schemas.wire import MAX_GPUS, CommandResult, Heartbeat, Hello, InventoryChanged, ProcessReport, Samples
from support.agent_messages import MESSAGES, changed

MARKS = f"{BEGIN}x{END}"


def raws(message: Any) -> list[str]:
    """As text, and escaped in either case of the digits."""
    escaped = json.dumps(message)
    return [json.dumps(message, ensure_ascii=False), escaped, escaped.replace("ufdd", "uFDD"), f"{escaped} "]


def has_mark(text: str) -> bool:
    return BEGIN in text or END in text


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: str(one["type"]))
def test_no_text_of_a_message_keeps_a_mark(message: dict[str, Any]) -> None:
    for bad in changed(message, lambda text: f"{text}{MARKS}"):
        for raw in raws(bad):
            doubts = Doubts()
            try:
                said = msgspec.json.encode(read_message(raw, doubts)).decode()
            except MalformedMessageError as error:
                said = str(error)
            assert not has_mark(said)
            assert not any(map(has_mark, doubts.dropped.values()))


def texts_of(model: type[msgspec.Struct]) -> set[str]:
    """Names of the fields that are texts, or hold some, in this model and those that it holds."""
    shapes = msgspec.json.schema(model)
    found = set()
    for shape in (shapes, *shapes.get("$defs", {}).values()):
        found |= {name for name, one in shape.get("properties", {}).items() if '"type": "string"' in json.dumps(one)}
    return found


def test_the_messages_here_have_every_text_of_the_protocol() -> None:
    kinds: tuple[type[msgspec.Struct], ...] = (
        Hello,
        Heartbeat,
        InventoryChanged,
        ProcessReport,
        Samples,
        CommandResult,
    )
    written = json.dumps(MESSAGES)
    assert [name for kind in kinds for name in texts_of(kind) if f'"{name}": ' not in written] == []


def test_a_refusal_and_the_reason_of_a_dropped_period_keep_none() -> None:
    assert not has_mark(str(MalformedMessageError(f"message: got {MARKS}")))
    doubts = Doubts()
    doubts.drop(1, f"periods: got {MARKS}")
    assert doubts.dropped == {1: "periods: got x"}


def test_a_mark_in_a_key_does_not_lead_past_the_bounds() -> None:
    """They are judged before the marks are gone."""
    one = json.loads(msgspec.json.encode(gpu("GPU-a")).decode())
    many = [one | {"uuid": f"GPU-{n:x}"} for n in range(MAX_GPUS + 1)]
    taken = read_message(json.dumps({"type": "heartbeat", "seq": 1, "gpus": None, f"gp{END}us": many}))
    assert isinstance(taken, Heartbeat)
    assert taken.gpus is None


def test_what_marks_stand_beside_stays() -> None:
    taken = read_message(json.dumps({"type": "heartbeat", "seq": 1, "gpus": None, "gpus_error": f"a{MARKS}\x00b"}))
    assert isinstance(taken, Heartbeat)
    assert taken.gpus_error == "a\ufffdx\ufffd\ufffdb"
