"""The base of messages between agent and controller, common bounds of fields, and JSON."""

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Final, get_type_hints

import msgspec
from msgspec import Meta

from schemas.wire.protocol import HIGHEST_PROTOCOL

MAX_NAME: Final = 512  # characters
MAX_TEXT: Final = 4_000  # characters
MAX_GPUS: Final = 256  # of a host
MAX_PROCESSES: Final = 10_000  # of a host
MAX_PERIODS: Final = 10_000  # of a message
MAX_ENTRIES: Final = 64  # of lists and maps of names: labels, engines, runtimes, details of a GPU

# Control characters and those that change the direction of text: a name is shown unescaped.
_UNSHOWN: Final = (
    r"\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb\ud800-\udfff\ue000-\uf8ff"
)
WireName = Annotated[str, Meta(max_length=MAX_NAME, pattern=rf"\A[^{_UNSHOWN}]*\Z")]
WireText = Annotated[str, Meta(max_length=MAX_TEXT)]
LongText = Annotated[str, Meta(max_length=2**20)]
GpuUuid = Annotated[str, Meta(pattern=r"\A(GPU|MIG)-[\w.:/-]{1,200}\Z")]
Int = Annotated[int, Meta(ge=0, le=2**31 - 1)]  # the database's
BigInt = Annotated[int, Meta(ge=0, le=2**62)]
Counter = Annotated[int, Meta(ge=0, le=2**53)]  # from which the controller continues
Mib = Annotated[int, Meta(ge=0, le=2**40)]
Percent = Annotated[float, Meta(ge=0, le=100)]
AgentSeconds = Annotated[float, Meta(ge=0, le=1e10)]  # on the agent's clock


@dataclass(frozen=True, slots=True)
class Since:
    """Marks a field of a later protocol: `read_s: Annotated[float | None, Since(4)] = None`.

    Peers of earlier protocols refuse unknown keys, so the field is not sent to them. It needs a default.
    """

    protocol: int


class Wire(msgspec.Struct, frozen=True):
    """Unknown keys are ignored, so that older readers accept new fields.

    Bounds of fields hold for messages that are read, not for messages that are made.
    """

    since: ClassVar[int] = 0  # protocol of the message. Older peers are not sent it


def encode(message: Wire, protocol: int) -> str:
    """The message as JSON, without fields of later protocols."""
    if message.since > protocol:
        raise AssertionError(f"{type(message).__name__} is of protocol {message.since}, the peer speaks {protocol}")
    return msgspec.json.encode(message if protocol >= HIGHEST_PROTOCOL else _for_peer(message, protocol)).decode()


def _for_peer(value: Any, protocol: int) -> Any:
    """The value without fields that the peer does not know."""
    match value:
        case Wire():
            tag = value.__struct_config__.tag
            fields = {name: _for_peer(getattr(value, name), protocol) for name in _known_fields(type(value), protocol)}
            return fields if tag is None else {"type": tag, **fields}
        case tuple():
            return [_for_peer(item, protocol) for item in value]
        case dict():
            return {key: _for_peer(item, protocol) for key, item in value.items()}
        case _:
            return value


@cache
def _known_fields(kind: type[Wire], protocol: int) -> tuple[str, ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple(name for name in kind.__struct_fields__ if _since(hints[name]) <= protocol)


def _since(annotation: Any) -> int:
    marks = getattr(annotation, "__metadata__", ())
    return max((mark.protocol for mark in marks if isinstance(mark, Since)), default=0)


def explain(error: Exception) -> str:
    """The text of a decoder's error, starting with the field: `host.os: expected `str`, got `int``."""
    what, _, where = str(error).rpartition(" - at ")
    field = where.replace("`", "").replace("key in ", "").removeprefix("$").removeprefix(".")
    return f"{field or 'message'}: {what[0].lower()}{what[1:]}" if what else str(error)
