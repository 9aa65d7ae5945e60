"""Readings that cannot be, and sampling periods that cannot be taken: they block nothing else of a message. Pure.

An impossible reading is unknown. A period that violates the protocol is dropped and acknowledged, since its agent would
send it for ever. Both are counted.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from controller.domain.access.quoted_lines import plain
from schemas.wire import DeviceFacts, GpuDetails, ProcessSample, Readings, SamplePeriod

_FULL_PERCENT: Final = 100.0
_MAX_MIB: Final = 2**40
_MAX_REQUESTS: Final = 2**31 - 1
_COUNTS: Final = ("requests", "arrived", "queued", "kv_use")
_SHARES: Final = ("utilization", "kv_use")  # they need not be whole
_MAX_BIGINT: Final = 2**62
_MAX_TEXT: Final = 300


@dataclass(slots=True)
class Doubts:
    """What of one message was left out.

    Attributes:
        impossible: number of readings that no GPU or engine can have.
        dropped: sampling periods that cannot be taken, by their sequence number, with the reason.
    """

    impossible: int = 0
    dropped: dict[int, str] = field(default_factory=dict)


def possible_gpu(gpu: DeviceFacts, doubts: Doubts) -> DeviceFacts:
    """The GPU without impossible readings."""
    wrong: dict[str, Any] = {}
    if gpu.utilization is not None and not _is_percent(gpu.utilization):
        wrong["utilization"] = None
    if gpu.used_mib is not None and not 0 <= gpu.used_mib <= _MAX_MIB:
        wrong["used_mib"] = None
    doubts.impossible += len(wrong)
    return gpu.model_copy(update=wrong) if wrong else gpu


def possible_period(period: SamplePeriod, doubts: Doubts) -> SamplePeriod:
    """The period without impossible readings: a GPU whose utilization is impossible has no sample in it."""
    doubts.impossible += max(min(period.impossible, _MAX_REQUESTS), 0)
    gpus = [gpu for gpu in period.gpus if _is_known(gpu)]
    doubts.impossible += len(period.gpus) - len(gpus)
    for n, gpu in enumerate(gpus):
        if gpu.used_mib is not None and not 0 <= gpu.used_mib <= _MAX_MIB:
            doubts.impossible += 1
            gpus[n] = gpu.model_copy(update={"used_mib": None})
    processes = tuple(_possible_process(process, doubts) for process in period.processes)
    if len(gpus) == len(period.gpus) and gpus == list(period.gpus) and processes == period.processes:
        return period
    return period.model_copy(update={"gpus": tuple(gpus), "processes": processes})


def _possible_process(process: ProcessSample, doubts: Doubts) -> ProcessSample:
    wrong: dict[str, Any] = {
        name: None
        for name in _COUNTS
        if (value := getattr(process, name)) is not None and not 0 <= value <= (1 if name in _SHARES else _MAX_REQUESTS)
    }
    doubts.impossible += len(wrong)
    impossible = {uuid for uuid, own in process.utilization.items() if own is not None and not _is_known(own)}
    if impossible:
        doubts.impossible += len(impossible)
        wrong["utilization"] = {u: None if u in impossible else own for u, own in process.utilization.items()}
    return process.model_copy(update=wrong) if wrong else process


def _is_known(readings: Readings) -> bool:
    return _is_percent(readings.mean) and _is_percent(readings.max)


def _is_percent(value: float) -> bool:
    return 0 <= value <= _FULL_PERCENT  # NaN is in no range


def forgiven(raw: Mapping[str, Any], doubts: Doubts) -> dict[str, Any]:
    """The message without what cannot be parsed among its readings and sampling periods."""
    message = dict(raw)
    match message.get("type"):
        case "heartbeat":
            message["gpus"] = _forgiven_gpus(message.get("gpus"), doubts)
        case "inventory" | "hello" if isinstance(message.get("inventory"), dict):
            gpus = _forgiven_gpus(message["inventory"].get("gpus"), doubts)
            message["inventory"] = {**message["inventory"], "gpus": gpus}
        case "samples" if isinstance(message.get("periods"), list):
            kept = []
            for period in message["periods"]:
                try:
                    kept.append(SamplePeriod.model_validate(_forgiven_period(period, doubts)))
                except ValidationError as error:
                    drop(period.get("seq") if isinstance(period, dict) else None, first_problem(error), doubts)
            message["periods"] = kept
        case _:
            pass
    return message


def _forgiven_gpus(gpus: Any, doubts: Doubts) -> Any:
    if not isinstance(gpus, list):
        return gpus
    return [_forgiven_details(_forgiven_fields(gpu, doubts, "used_mib", "utilization"), doubts) for gpu in gpus]


def _forgiven_details(gpu: Any, doubts: Doubts) -> Any:
    """The GPU without its details if one of them cannot be: nothing is decided by them."""
    if not isinstance(gpu, dict) or gpu.get("details") is None:
        return gpu
    try:
        GpuDetails.model_validate(gpu["details"])
    except ValidationError:
        doubts.impossible += 1
        return gpu | {"details": None}
    return gpu


def _forgiven_period(period: Any, doubts: Doubts) -> Any:
    """JSON has no NaN: an agent that reads one sends null."""
    if not isinstance(period, dict):
        return period
    gpus, processes = period.get("gpus"), period.get("processes", [])
    if not isinstance(gpus, list) or not isinstance(processes, list):
        return period
    known = [gpu for gpu in gpus if not isinstance(gpu, dict) or _are_numbers(gpu.get("mean"), gpu.get("max"))]
    doubts.impossible += len(gpus) - len(known)
    return {
        **period,
        "gpus": [_forgiven_fields(gpu, doubts, "used_mib") for gpu in known],
        "processes": [_forgiven_process(_forgiven_fields(p, doubts, *_COUNTS), doubts) for p in processes],
    }


def _forgiven_process(process: Any, doubts: Doubts) -> Any:
    own = process.get("utilization") if isinstance(process, dict) else None
    if not isinstance(own, dict):
        return process
    wrong = {u for u, r in own.items() if isinstance(r, dict) and not _are_numbers(r.get("mean"), r.get("max"))}
    doubts.impossible += len(wrong)
    return {**process, "utilization": {u: None if u in wrong else r for u, r in own.items()}}


def _forgiven_fields(item: Any, doubts: Doubts, *names: str) -> Any:
    """The object with None for these fields where they are no number; whole numbers where the wire has them."""
    if not isinstance(item, dict):
        return item
    wrong = [n for n in names if item.get(n) is not None and not _are_numbers(item[n])]
    wrong += [n for n in names if n not in wrong and n not in _SHARES and not _is_whole(item.get(n) or 0)]
    doubts.impossible += len(wrong)
    return item | dict.fromkeys(wrong)


def _is_whole(value: float) -> bool:
    return value % 1 == 0 and abs(value) < _MAX_BIGINT


def _are_numbers(*values: Any) -> bool:
    """Whether all are finite. JSON has whole numbers of any size, too large ones for `math.isfinite`."""
    return all(
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
        for value in values
    )


def drop(seq: Any, reason: str, doubts: Doubts) -> None:
    """Notes a period that cannot be taken. Without a sequence number it cannot be acknowledged.

    The reason may quote what was sent, so it is shortened, made storable and rid of the marks of quoted lines.
    """
    if isinstance(seq, int):
        storable = plain(reason).replace("\x00", "\ufffd").encode(errors="replace").decode()
        doubts.dropped[seq] = storable[:_MAX_TEXT]


def first_problem(error: ValidationError) -> str:
    """The first problem: the field and what is wrong."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'message'}: {first['msg']}"


def takeable(
    periods: tuple[SamplePeriod, ...], check: Callable[[SamplePeriod], None], doubts: Doubts
) -> tuple[SamplePeriod, ...]:
    """The periods that pass the check, which raises ValueError; the others are dropped."""
    kept = []
    for period in periods:
        possible = possible_period(period, doubts)
        try:
            check(possible)
        except ValueError as error:
            drop(period.seq, str(error), doubts)
        else:
            kept.append(possible)
    return tuple(kept)
