"""Verdicts on measurements. Pure: no clock, no processes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpu_kit.results import NO_CUDA, Finding, judged, skipped

ESTIMATE_OFF: Final = 0.10  # share by which an estimate may differ from NVML
UTILIZATION_OFF: Final = 15.0  # percent points by which NVML may differ from the burner
SAMPLE_LIMIT_S: Final = 1.0  # the agent samples once a second
_GRAIN_MIB: Final = 64  # the driver allocates memory in such steps or smaller steps
AGENT_MIB, BOTH_MIB, CORE_PERCENT = 85, 125, 1.0  # the limits of bench/agent_cost.py


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed; NaN without values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def spread_ms(seconds: Sequence[float]) -> dict[str, float]:
    shares = {"p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}
    return {name: round(1000 * percentile(seconds, share), 2) for name, share in shares.items()}


def sample_cost(name: str, seconds: Sequence[float]) -> Finding:
    return judged(name, percentile(seconds, 0.99) <= SAMPLE_LIMIT_S, "", samples=len(seconds), **spread_ms(seconds))


def fields_by_kind(fields: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    kinds: dict[str, list[str]] = {"value": [], "unsupported": [], "error": []}
    for name, field in sorted(fields.items()):
        kind = "error" if field.get("error") else "unsupported" if field.get("unsupported") else "value"
        kinds[kind].append(name)
    return kinds


def fields_verdict(name: str, fields: Mapping[str, Mapping[str, Any]], needed: Iterable[str]) -> Finding:
    """Passes where no field fails, and each needed field has a value."""
    kinds = fields_by_kind(fields)
    missing = sorted(set(needed) - set(kinds["value"]))
    errors = {field: fields[field]["error"] for field in kinds["error"]}
    words = [f"without a value: {', '.join(missing)}"] if missing else []
    words += [f"{field}: {text}" for field, text in errors.items()]
    return judged(
        name, not missing and not errors, "; ".join(words),
        values=len(kinds["value"]), unsupported=kinds["unsupported"], errors=kinds["error"],
    )  # fmt: skip


def estimate(name: str, claimed_mib: float, measured_mib: float | None, *, cuda: bool) -> Finding:
    """The claim compared with the engine's processes in NVML."""
    if not cuda:
        return skipped(name, NO_CUDA, claimed_mib=claimed_mib, shown_mib=measured_mib)
    if not measured_mib:
        return judged(name, False, "NVML shows no memory of the engine's processes", claimed_mib=claimed_mib)
    ratio = claimed_mib / measured_mib
    return judged(
        name, abs(ratio - 1) <= ESTIMATE_OFF, f"the goal is 1 within {ESTIMATE_OFF:.0%}", ratio=round(ratio, 3),
        claimed_mib=claimed_mib, measured_mib=measured_mib,
    )  # fmt: skip


def utilization(name: str, duty: float, percents: Sequence[float], own: Sequence[float]) -> Finding:
    """Samples of a GPU by NVML while a program keeps it busy for `duty` percent; `own`: of the program's process."""
    if not percents:
        return judged(name, False, "NVML shows no utilization", duty=duty)
    mean = sum(percents) / len(percents)
    return judged(
        name, abs(mean - duty) <= UTILIZATION_OFF, duty=duty, gpu_mean=round(mean, 1), gpu_max=max(percents),
        process_max=max(own, default=None), samples=len(percents),
    )  # fmt: skip


def held_memory(name: str, held_mib: float, listed_mib: float | None, *, context_mib: float) -> Finding:
    """The memory that NVML lists for a program with a known amount and a CUDA context."""
    if listed_mib is None:
        return judged(name, False, "NVML lists no memory of it", held_mib=held_mib)
    most = held_mib + context_mib + _GRAIN_MIB
    return judged(name, held_mib <= listed_mib <= most, held_mib=held_mib, listed_mib=listed_mib)


@dataclass(frozen=True, slots=True)
class Stop:
    """An idle stop, in seconds of the same clock."""

    quiet_since_s: float  # the end of the last request
    stopped_s: float | None  # None: not within the limit
    window_s: float  # of the policy
    slack_s: float  # a sampling period, the leader's pace, and the poll of the observer


def idle_stop(name: str, stop: Stop) -> Finding:
    """Passes for a stop neither before the window was full nor late."""
    if stop.stopped_s is None:
        return judged(name, False, "not stopped", window_s=stop.window_s)
    after_s = stop.stopped_s - stop.quiet_since_s
    in_time = stop.window_s <= after_s <= stop.window_s + stop.slack_s
    return judged(name, in_time, after_s=round(after_s, 1), window_s=stop.window_s, slack_s=stop.slack_s)


def memory_first(name: str, last_listed_s: float | None, claim_gone_s: float | None) -> Finding:
    """Passes where the driver no longer listed a process when its claim was released. Times are of the same clock."""
    if last_listed_s is None:
        return judged(name, False, "NVML never listed the engine")
    if claim_gone_s is None:
        return judged(name, False, "the claim did not go")
    return judged(name, last_listed_s <= claim_gone_s, claim_after_memory_s=round(claim_gone_s - last_listed_s, 2))


def agent_cost(name: str, agent_mib: float, child_mib: float, percents: Mapping[str, float]) -> Finding:
    """Memory and processor time of the agent and of its child that reads NVML; `percents` of a core."""
    within = agent_mib <= AGENT_MIB and agent_mib + child_mib <= BOTH_MIB and percents.get("agent", 0.0) <= CORE_PERCENT
    message = f"limits: {AGENT_MIB} MiB, {BOTH_MIB} MiB with its child, {CORE_PERCENT:g} % of a core"
    shares = {f"{who}_core_percent": round(value, 2) for who, value in percents.items()}
    return judged(name, within, message, agent_mib=round(agent_mib, 1), child_mib=round(child_mib, 1), **shares)
