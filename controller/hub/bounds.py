"""The JSON of one message, and bounds on how much it holds. They are judged before its fields are. Pure.

An entry that is not what the protocol says costs its validation thousands of times its bytes. So the entries of each
list and map are counted first. A sampling period, or the details of a GPU, with too many blocks nothing else of the
message, as in `readings`.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic_core import from_json

from controller.domain.access.quoted_lines import plain
from controller.hub.readings import Doubts, drop

MAX_GPUS: Final = 256
MAX_PROCESSES: Final = 10_000
MAX_PERIODS: Final = 10_000
MAX_LABELS: Final = 64
MAX_DETAILS: Final = 64
MAX_ENTRIES: Final = 50_000  # of all lists and maps of one message; a chunk of samples has some 2,000
_MAX_VALUES: Final = 1_000_000  # each takes up to 70 bytes of memory
_MAX_REASON: Final = 500
_MOST: Final[Mapping[str, int]] = {
    "gpus": MAX_GPUS,
    "processes": MAX_PROCESSES,
    "receipts": MAX_PROCESSES,
    "periods": MAX_PERIODS,
    "engines": MAX_LABELS,
    "runtimes": MAX_LABELS,
    "labels": MAX_LABELS,
    "utilization": MAX_GPUS,
    **dict.fromkeys(
        ("throttle", "nvlink_peers", "peers", "xids", "foreign", "unsupported", "errors"), MAX_DETAILS
    ),
}  # fmt: skip
_LOOKED_INTO: Final = _MOST.keys() | {"inventory", "host", "details"}


class MalformedMessageError(ValueError):
    """The message violates the protocol; the text names the field and says why. It is cut: it may quote the message.

    For the same reason the marks of quoted lines are taken out of it.
    """

    def __init__(self, reason: str) -> None:
        reason = plain(reason)
        super().__init__(reason if len(reason) <= _MAX_REASON else f"{reason[:_MAX_REASON]}...")


def read_message(raw: str, doubts: Doubts) -> dict[str, Any]:
    """The message as JSON has it, within the bounds. What is left out is noted in `doubts`.

    Raises:
        MalformedMessageError: it is not an object of JSON, or holds too much.
    """
    sent = read_object(raw)
    if sent.get("type") == "samples" and isinstance(sent.get("periods"), list):
        sent["periods"] = _bounded_periods(sent["periods"], doubts)
        return sent
    for gpu in _gpus(sent):
        _bound_details(gpu, doubts)
    _check_total(_entries("", sent))
    return sent


def read_object(raw: str) -> dict[str, Any]:
    """The message as JSON has it, of bounded depth and number of values.

    Raises:
        MalformedMessageError: it is not an object of JSON, or holds too much.
    """
    if sum(map(raw.count, "{[,")) > _MAX_VALUES:  # those in texts count, too: nothing sensible has so many
        raise MalformedMessageError(f"message: must have at most {_MAX_VALUES} values")
    try:
        sent = _read(raw)
    except (ValueError, RecursionError) as error:
        raise MalformedMessageError(f"message: must be JSON: {error}") from error
    if not isinstance(sent, dict):
        raise MalformedMessageError(f"message: must be a JSON object, got {type(sent).__name__}")
    return sent


def _read(raw: str) -> Any:
    try:
        return from_json(raw)
    except ValueError:
        sent = json.loads(raw)  # takes half of a surrogate pair, too, which the database does not
        if isinstance(sent, dict) and sent.get("type") == "samples":
            return sent  # a period is dropped for it, and not the message
        raise


def _bounded_periods(periods: list[Any], doubts: Doubts) -> list[Any]:
    _check_count("periods", len(periods))
    total = 0
    kept = []
    for period in periods:
        try:
            entries = _entries("periods", [period])
            _check_total(entries)
        except MalformedMessageError as error:
            drop(period.get("seq"), str(error), doubts)
        else:
            kept.append(period)
            total += entries
        _check_total(total)
    return kept


def _gpus(sent: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The GPUs of a heartbeat, an inventory or a hello, as far as they are any."""
    inventory = sent.get("inventory", sent)
    gpus = inventory.get("gpus") if isinstance(inventory, dict) else None
    yield from (gpu for gpu in gpus if isinstance(gpu, dict)) if isinstance(gpus, list) else ()


def _bound_details(gpu: dict[str, Any], doubts: Doubts) -> None:
    try:
        _entries("", {"details": gpu.get("details")})
    except MalformedMessageError:
        gpu["details"] = None
        doubts.impossible += 1


def _entries(field: str, value: list[Any] | dict[str, Any]) -> int:
    """The number of entries of a list or map, and of all lists and maps in it.

    Raises:
        MalformedMessageError: one of them has too many.
    """
    entries = _check_count(field, len(value))
    for one in value if isinstance(value, list) else (value,):
        if isinstance(one, dict):
            for key, inner in one.items():
                if key in _LOOKED_INTO and isinstance(inner, list | dict):
                    entries += _entries(f"{field}.{key}" if field else key, inner)
    return entries


def _check_count(field: str, count: int) -> int:
    """The number of entries that counts towards the total: none of what has no bound of its own."""
    most = _MOST.get(field.rpartition(".")[2])
    if most is None:
        return 0
    if count > most:
        raise MalformedMessageError(f"{field}: must have at most {most} entries, got {count}")
    return count


def _check_total(entries: int) -> None:
    if entries > MAX_ENTRIES:
        raise MalformedMessageError(f"message: must have at most {MAX_ENTRIES} entries in its lists, got {entries}")
