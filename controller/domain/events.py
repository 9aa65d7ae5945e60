"""Events to write, and budgets for events that agents alone can cause.

A hostile agent or a flapping host must not fill the history. The first events of one worker or instance and reason in
an hour are all written. Later events are counted, and a few times an hour the newest is written with the number of
those that it summarizes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

WINDOW: Final = timedelta(hours=1)
WRITTEN_FIRST: Final = 20  # events in a window that are all written
SUMMARY_EVERY: Final = timedelta(minutes=10)  # least time from the last written event to a summary
# Events written for one object and reason in any hour: at most those of two windows.
MOST_AN_HOUR: Final = 2 * WRITTEN_FIRST + 2 + WINDOW // SUMMARY_EVERY
# Reasons by the kind of object whose budget is spent. Agents can make up GPUs, so events of GPUs spend their worker's.
AGENT_CAUSED: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "advertise_refused", "agent_message_malformed", "breaker_closed", "breaker_opened", "disk_freed",
                "disk_pressure", "gpu_held_elsewhere", "gpu_memory_explained", "gpu_memory_unclaimed", "gpu_missing",
                "gpu_recovered", "gpu_unhealthy", "gpus_readable", "gpus_unreadable", "history_lost",
                "no_common_protocol", "processes_gone", "stray_process", "term_ahead", "worker_joining", "worker_lost",
                "worker_quarantined", "worker_ready", "worker_rebooted", "worker_unreachable",
            ),
            "worker",
        ),
        **dict.fromkeys(
            (
                "backoff", "ended", "gpu_memory_held", "image_differs", "model_differs", "running", "stable",
                "start_refused",
            ),
            "instance",
        ),
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An append-only event."""

    reason: str
    message: str
    objects: tuple[
        str, ...
    ] = ()  # `deployment:<uid>`, `instance:<id>`, `worker:<id>`, `gpu:<uuid>`, `policy:<uid>`, ...
    evidence: Mapping[str, Any] = field(default_factory=dict)
    actor: str = ""  # empty: the actor at the time of the write (`store/core/events.py`)


@dataclass(frozen=True, slots=True)
class EventBudget:
    """The events of one object and reason."""

    began_at: datetime  # of the present window
    written: int  # in this window, without summaries
    written_at: datetime  # of the last written event
    held: int  # events since then, which were not written


@dataclass(frozen=True, slots=True)
class Spent:
    """Which of some new events of one object and reason are written, and their budget afterwards."""

    budget: EventBudget
    late: bool  # the newest held event is written first, as the summary of all held events
    first: int  # number of new events that are written, from the first
    summarized: int | None  # the last new event is written too, as the summary of this many before it; None: it is not


def fresh(now: datetime) -> EventBudget:
    return EventBudget(now, 0, now, 0)


def budget_of(reason: str, objects: tuple[str, ...]) -> str | None:
    """The object whose budget an event spends; None: no agent alone can cause it."""
    kind = AGENT_CAUSED.get(reason)
    if kind is None:
        return None
    return next((name for name in objects if name.startswith(f"{kind}:")), objects[0])


def spend(budget: EventBudget, now: datetime, number: int) -> Spent:
    late = False
    if not timedelta() <= now - budget.began_at < WINDOW:  # or the clock was set back
        late = budget.held > 0
        budget = fresh(now)
    first = max(0, min(number, WRITTEN_FIRST - budget.written))
    if first:
        late = late or budget.held > 0
        budget = replace(budget, written=budget.written + first, written_at=now, held=0)
    rest = number - first
    if rest and now - budget.written_at >= SUMMARY_EVERY:
        return Spent(replace(budget, written_at=now, held=0), late, first, budget.held + rest - 1)
    return Spent(replace(budget, held=budget.held + rest), late, first, None)
