"""Messages between agent and controller: read or refused with the one error of their reader, and written as they were.

The first byte says whose message it is: an odd one an agent's, an even one a controller's.
"""

import contextlib
import json
from typing import Any, Final, get_args, get_type_hints

import msgspec

from controller.hub.agent_messages import MalformedMessageError, read_message
from schemas.wire import (
    LOWEST_PROTOCOL,
    SPOKEN,
    AgentMessage,
    ControllerMessage,
    Wire,
    agent_message,
    controller_message,
    encode,
)
from support.builders.bounds import bounded
from support.fuzz.refusals import explained


def _names(models: Any) -> set[str]:
    """The names of all fields of these models, at any depth, and the words that a field may be."""
    found: set[str] = set()
    left, met = [models], []
    while left:
        kind = left.pop()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in met:
            met.append(kind)
            found |= {*kind.__struct_fields__, str(kind.__struct_config__.tag or "type")}
            left += get_type_hints(kind).values()
        elif isinstance(kind, str):
            found.add(kind)
        left += get_args(kind)
    return found


WORDS: Final = (
    *(json.dumps(name) for name in sorted(_names(AgentMessage) | _names(ControllerMessage))),
    *("null", "true", "NaN", "1e999", "-1", "18446744073709551616", '"GPU-a"', "\\u0000", "\\ud800", "\\ufdd0", "[[[["),
    *("{", "}", "[", "]", ":", ",", '"'),
)  # fmt: skip


def check(data: bytes) -> None:
    """The message is read or refused; what is read can be sent to a peer of any protocol, and an agent's stored."""
    raw = data[1:].decode(errors="replace")  # a WebSocket's text is UTF-8
    with bounded():
        message = _of_agent(raw) if data[:1] and data[0] & 1 else _of_controller(raw)
    if message is None:
        return
    stored = json.dumps(msgspec.to_builtins(message), ensure_ascii=False)
    assert stored.encode()
    assert "\\u0000" not in stored or not data[0] & 1, "PostgreSQL refuses it"
    again = read_message if data[0] & 1 else controller_message.decode
    for protocol in range(max(LOWEST_PROTOCOL, message.since), SPOKEN.highest + 1):
        sent = encode(message, protocol)
        read = again(sent)
        assert encode(read, protocol) == sent
        assert protocol < SPOKEN.highest or read == message, "it is written otherwise"


def _of_agent(raw: str) -> Wire | None:
    message = None
    try:
        message = read_message(raw)
        _is_read_alike(raw)
    except MalformedMessageError as error:
        explained(error)
    return message


def _is_read_alike(raw: str) -> None:
    """Python's own parser makes the same of what ours has taken."""
    with contextlib.suppress(ValueError, RecursionError):  # out of the schema's bounds, or a deep value
        message = agent_message.decode(raw)
        assert msgspec.convert(json.loads(raw), AgentMessage) == message


def _of_controller(raw: str) -> Wire | None:
    try:
        return controller_message.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
