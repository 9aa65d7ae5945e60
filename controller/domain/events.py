"""Events that are not written yet, and budgets of those that agents alone can cause. Pure.

An agent that lies, or a host that flaps, must not fill the history. Of one worker or instance, the first events of a
reason in an hour are written whole. Later ones are counted, and a few times an hour the newest of them is written with
the number of those between.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

WINDOW: Final = timedelta(hours=1)
WHOLE: Final = 20  # events in a window that are written whole
SUMMARY_EVERY: Final = timedelta(minutes=10)  # least time from the last written one to one that represents several
# Each event written for one object and reason in any hour: those of two windows at most.
MOST_AN_HOUR: Final = 2 * WHOLE + 2 + WINDOW // SUMMARY_EVERY
# Reasons by the kind of object whose budget is spent. An agent can make up GPUs, so those spend their worker's.
AGENT_CAUSED: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "advertise_refused",
                "agent_message_malformed",
                "breaker_closed",
                "breaker_opened",
                "disk_freed",
                "disk_pressure",
                "gpu_held_elsewhere",
                "gpu_memory_explained",
                "gpu_memory_unclaimed",
                "gpu_missing",
                "gpu_recovered",
                "gpu_unhealthy",
                "gpus_readable",
                "gpus_unreadable",
                "history_lost",
                "no_common_protocol",
                "processes_gone",
                "stray_process",
                "term_ahead",
                "worker_joining",
                "worker_lost",
                "worker_quarantined",
                "worker_ready",
                "worker_rebooted",
                "worker_unreachable",
            ),
            "worker",
        ),
        **dict.fromkeys(
            (
                "backoff",
                "ended",
                "gpu_memory_held",
                "image_differs",
                "model_differs",
                "running",
                "stable",
                "start_refused",
            ),
            "instance",
        ),
    }
)


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An append-only event.

    Attributes:
        objects: `deployment:<uid>`, `instance:<id>`, `worker:<id>`, `gpu:<uuid>`, `policy:<uid>`, `key:<id>`, ...
        actor: what did it; empty: what is at work when the event is written (`store/core/events.py`).
    """

    reason: str
    message: str
    objects: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    actor: str = ""


@dataclass(frozen=True, slots=True)
class EventBudget:
    """What was written of one object and reason.

    Attributes:
        began_at: of the present window.
        written: events of this window that were written whole.
        written_at: of the last written one.
        held: those since then that were not written.
    """

    began_at: datetime
    written: int
    written_at: datetime
    held: int


@dataclass(frozen=True, slots=True)
class Spent:
    """What becomes of some new events of one object and reason, and their budget afterwards.

    Attributes:
        late: the newest of those held before is written first, and stands for all of them.
        whole: so many of the new ones are written, the first ones.
        standing_for: the last of the new ones is written too, and stands for so many before it; None if it is not.
    """

    budget: EventBudget
    late: bool
    whole: int
    standing_for: int | None


def fresh(now: datetime) -> EventBudget:
    """The budget of an object and reason of which nothing was written."""
    return EventBudget(now, 0, now, 0)


def budget_of(reason: str, objects: tuple[str, ...]) -> str | None:
    """The object whose budget an event spends; None: no agent alone can cause it."""
    kind = AGENT_CAUSED.get(reason)
    if kind is None:
        return None
    return next((one for one in objects if one.startswith(f"{kind}:")), objects[0])


def spend(budget: EventBudget, now: datetime, number: int) -> Spent:
    """What becomes of that many new events, in order."""
    late = False
    if not timedelta() <= now - budget.began_at < WINDOW:  # or the clock was set back
        late = budget.held > 0
        budget = fresh(now)
    whole = max(0, min(number, WHOLE - budget.written))
    if whole:
        late = late or budget.held > 0
        budget = replace(budget, written=budget.written + whole, written_at=now, held=0)
    rest = number - whole
    if rest and now - budget.written_at >= SUMMARY_EVERY:
        return Spent(replace(budget, written_at=now, held=0), late, whole, budget.held + rest - 1)
    return Spent(replace(budget, held=budget.held + rest), late, whole, None)
