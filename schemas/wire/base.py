"""The base of what agent and controller exchange, and its JSON for a peer that speaks an older protocol."""

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict


@dataclass(frozen=True, slots=True)
class Since:
    """Marks a field that came with a later protocol: `read_s: Annotated[float | None, Since(4)] = None`.

    Peers of earlier protocols refuse unknown keys, so the field is not sent to them. It needs a default.
    """

    protocol: int


class Wire(BaseModel):
    """Frozen. Unknown keys are ignored, so that a field can be added without turning older readers away.

    Attributes:
        since: protocol of a whole message that came later, which older peers are not sent.
    """

    since: ClassVar[int] = 0
    model_config = ConfigDict(frozen=True, extra="ignore")


class FiniteWire(Wire):
    """A message, or a part of one, by whose numbers its reader waits or counts: none is infinite or NaN."""

    model_config = ConfigDict(allow_inf_nan=False)


def encode(message: Wire, protocol: int) -> str:
    """The message as JSON, without the fields that came after `protocol`."""
    if message.since > protocol:
        raise AssertionError(f"{type(message).__name__} is of protocol {message.since}, the peer speaks {protocol}")
    return message.model_dump_json(exclude=_later_fields(type(message), protocol))


@cache
def _later_fields(model: type[Wire], protocol: int) -> dict[str, Any] | None:
    """What to exclude, in pydantic's form; None: nothing."""
    excluded: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        if any(isinstance(mark, Since) and mark.protocol > protocol for mark in field.metadata):
            excluded[name] = True
        elif (inner := _later_within(field.annotation, protocol)) is not None:
            excluded[name] = inner
    return excluded or None


def _later_within(annotation: Any, protocol: int) -> dict[str, Any] | None:
    """What to exclude within a field of this type."""
    if isinstance(annotation, type) and issubclass(annotation, Wire):
        return _later_fields(annotation, protocol)
    origin = getattr(annotation, "__origin__", None)
    found = [inner for part in get_args(annotation) if (inner := _later_within(part, protocol)) is not None]
    if not found:
        return None
    return {"__all__": found[0]} if origin in (tuple, list, dict) else found[0]
