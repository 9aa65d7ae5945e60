"""Reads the messages of agents, within bounds. Pure; one message at a time.

`schemas.wire` states the bounds of each field. A message within them is decoded in one pass; unknown keys make no
objects. Any other message is read again: an impossible reading of a GPU or engine becomes unknown, and a sampling
period that violates the protocol is dropped and acknowledged, since its agent would repeat it for ever. Both are
counted. Other violations are refused.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, get_type_hints

import msgspec
from msgspec.structs import replace

from controller.domain.access.redaction import BEGIN, END, plain
from schemas.wire import (
    MAX_GPUS,
    MAX_PERIODS,
    MAX_PROCESSES,
    AgentMessage,
    GpuSample,
    Heartbeat,
    Hello,
    Inventory,
    InventoryChanged,
    ProcessSample,
    Readings,
    ReportedGpu,
    SamplePeriod,
    Samples,
    agent_message,
    explain,
)

MAX_VALUES: Final = 2**18  # of one message; 10,000 process reports have 160,000
MAX_SAMPLES: Final = 50_000  # of one period: of GPUs, of processes, and of GPUs by process
_MAX_REASON: Final = 500  # characters
_AHEAD_S: Final = 1.0  # a period may end shortly after the message's own time
_READINGS: Final[Mapping[type, tuple[str, ...]]] = {
    ReportedGpu: ("used_mib", "utilization", "details"),
    GpuSample: ("used_mib",),
    ProcessSample: ("requests", "arrived", "queued", "kv_use"),
}
# Engines' output can hold these, but PostgreSQL's text has no NUL, and only the hub marks lines of logs. One character
# replaces all of them, so that the number of known keys stays small.
_FORBIDDEN: Final = str.maketrans(dict.fromkeys(("\x00", BEGIN, END), "\ufffd"))
_ESCAPED: Final = re.compile(r"\\u(?:0000|[fF][dD][dD][01])")


class MalformedMessageError(ValueError):
    """The message violates the protocol; the text names the field and the reason.

    The text may quote the message, so it is cut, and marks of quoted lines are removed.
    """

    def __init__(self, reason: str) -> None:
        reason = plain(reason)
        super().__init__(reason if len(reason) <= _MAX_REASON else f"{reason[:_MAX_REASON]}...")


@dataclass(slots=True)
class Doubts:
    """The parts of one message that were left out.

    Attributes:
        impossible: number of impossible readings.
        dropped: sampling periods that violate the protocol, by their sequence number, with the reason.
    """

    impossible: int = 0
    dropped: dict[int, str] = field(default_factory=dict)

    def drop(self, seq: Any, reason: str) -> None:
        if isinstance(seq, int):  # else it cannot be acknowledged
            storable = plain(reason).replace("\x00", "\ufffd").encode(errors="replace").decode()
            self.dropped[seq] = storable[:_MAX_REASON]


def read_message(raw: str, doubts: Doubts | None = None) -> AgentMessage:
    """Reads one message. `doubts` gets the parts that are left out.

    Raises:
        MalformedMessageError: it violates the protocol, or a value is out of bounds.
    """
    doubts = Doubts() if doubts is None else doubts
    if sum(map(raw.count, "{[,")) > MAX_VALUES:
        raise MalformedMessageError(f"message: must have at most {MAX_VALUES} values")
    try:
        message = _decoded(raw) or _read_again(raw, doubts)
    except RecursionError as error:
        raise MalformedMessageError("message: is nested too deeply") from error
    return _checked(message, doubts)


def _decoded(raw: str) -> AgentMessage | None:
    """The message; None if it violates the schema, or a text may hold a forbidden character."""
    if BEGIN in raw or END in raw or ("\\u" in raw and _ESCAPED.search(raw)):
        return None
    try:
        return agent_message.decode(raw)
    except msgspec.DecodeError:
        return None


def _read_again(raw: str, doubts: Doubts) -> AgentMessage:
    """The message without impossible readings and periods."""
    try:  # with json, which unlike msgspec reads NaN, numbers of any size and half of a surrogate pair
        sent = json.loads(raw)
    except ValueError as error:
        raise MalformedMessageError(f"message: must be JSON: {error}") from error
    if not isinstance(sent, dict):
        raise MalformedMessageError(f"message: must be a JSON object, got {type(sent).__name__}")
    periods = sent.get("periods") if sent.get("type") == "samples" else None
    if isinstance(periods, list) and len(periods) <= MAX_PERIODS:
        sent["periods"] = []
    _forget_impossible(sent.get("gpus"), ReportedGpu, MAX_GPUS, doubts)
    if isinstance(sent.get("inventory"), dict):
        _forget_impossible(sent["inventory"].get("gpus"), ReportedGpu, MAX_GPUS, doubts)
    try:
        message: AgentMessage = msgspec.convert(_storable(sent), AgentMessage, strict=False)
    except msgspec.ValidationError as error:
        raise MalformedMessageError(explain(error)) from error
    if isinstance(message, Samples) and isinstance(periods, list):
        kept = tuple(period for sent in periods if (period := _period(sent, doubts)) is not None)
        return replace(message, periods=kept)
    return message


def _storable(value: Any, field: str = "message") -> Any:
    """The value without forbidden characters.

    Raises:
        MalformedMessageError: a text has half of a surrogate pair.
    """
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise MalformedMessageError(f"{field}: must be Unicode text: {error.reason}") from error
        return value.translate(_FORBIDDEN)
    if isinstance(value, list):
        return [_storable(item, field) for item in value]
    if isinstance(value, dict):
        return {_storable(key, field): _storable(item, key) for key, item in value.items()}
    return value


def _forget_impossible(items: Any, kind: type, most: int, doubts: Doubts) -> None:
    if not isinstance(items, list) or len(items) > most:
        return
    for item in items:
        for name in _READINGS[kind] if isinstance(item, dict) else ():
            if item.get(name) is not None and not _fits(item[name], _types(kind)[name]):
                item[name] = None
                doubts.impossible += 1


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind, strict=False)
    except (msgspec.ValidationError, UnicodeError):  # half of a surrogate pair
        return False
    return True


@cache
def _types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _period(sent: Any, doubts: Doubts) -> SamplePeriod | None:
    """The period without impossible readings. A GPU with an impossible utilization has no sample in it."""
    fields = sent if isinstance(sent, dict) else {}
    gpus, processes = fields.get("gpus"), fields.get("processes")
    _forget_impossible(gpus, GpuSample, MAX_GPUS, doubts)
    _forget_impossible(processes, ProcessSample, MAX_PROCESSES, doubts)
    if isinstance(gpus, list) and len(gpus) <= MAX_GPUS:
        fields["gpus"] = [gpu for gpu in gpus if not isinstance(gpu, dict) or _fits(gpu, Readings)]
        doubts.impossible += len(gpus) - len(fields["gpus"])
    for process in processes if isinstance(processes, list) else ():
        own = process.get("utilization") if isinstance(process, dict) else None
        if isinstance(own, dict) and len(own) <= MAX_GPUS:
            wrong = [uuid for uuid, use in own.items() if isinstance(use, dict) and not _fits(use, Readings)]
            own.update(dict.fromkeys(wrong))
            doubts.impossible += len(wrong)
    try:
        return msgspec.convert(_storable(sent), SamplePeriod, strict=False)
    except (msgspec.ValidationError, MalformedMessageError) as error:
        doubts.drop(fields.get("seq"), explain(error))
        return None


def _checked(message: AgentMessage, doubts: Doubts) -> AgentMessage:
    """Checks the rules that a schema cannot state."""
    match message:
        case Hello(inventory=inventory) | InventoryChanged(inventory=inventory):
            _check_inventory(inventory)
        case Heartbeat(gpus=gpus):
            _check_different("gpus", [gpu.uuid for gpu in gpus or ()])
        case Samples():
            kept = tuple(period for period in message.periods if _is_sound(period, message.sent_s, doubts))
            return message if len(kept) == len(message.periods) else replace(message, periods=kept)
        case _:
            pass
    return message


def _check_inventory(inventory: Inventory) -> None:
    _check_different("inventory.host.runtimes", [runtime.name for runtime in inventory.host.runtimes])
    _check_different("inventory.gpus", [gpu.uuid for gpu in inventory.gpus or ()])


def _check_different(where: str, names: Collection[str]) -> None:
    if len(set(names)) != len(names):
        raise MalformedMessageError(f"{where}: the same name appears twice")


def _is_sound(period: SamplePeriod, sent_s: float, doubts: Doubts) -> bool:
    """Whether a period is valid. `doubts` gets the reason if it is not."""
    doubts.impossible += period.impossible
    why = ""
    if period.sampled_s > sent_s + _AHEAD_S:
        why = f"periods.sampled_s: must be at most {sent_s:g}, got {period.sampled_s:g}"
    elif len({gpu.uuid for gpu in period.gpus}) != len(period.gpus):
        why = "periods.gpus: the same name appears twice"
    elif (size := size_of(period)) > MAX_SAMPLES:
        why = f"periods: must have at most {MAX_SAMPLES} entries in its lists, got {size}"
    if why:
        doubts.drop(period.seq, why)
    return not why


def size_of(period: SamplePeriod) -> int:
    """The number of samples in a period."""
    return 1 + len(period.gpus) + sum(1 + len(process.utilization) for process in period.processes)
