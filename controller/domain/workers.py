"""The workers as read at one moment, and what is to become of them. Frozen; times are the database's."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from controller.domain.phases import WorkerPhase

# Reasons of a worker's phase.
SILENT = "silent"
DISCONNECTED = "disconnected"
AGENT_STOPPED = "agent_stopped"
TERM_AHEAD = "term_ahead"
BREAKER_OPEN = "breaker_open"
CONFIRMED_DEAD = "confirmed_dead"


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One undeleted worker.

    Attributes:
        session: number of its newest hello.
        reported: it has sent a full report at least once.
        connected: its newest session is open, as far as the hub has written.
        clean: it said goodbye before it went.
        last_seen: when its newest message came; None if never.
        confirmed_dead: the operator says so.
        highest_term: that its agent has seen; above ours it refuses our orders.
        stops_within_s: seconds after the loss of its controller by which all that holds claims there has ended by
            itself; None where something would run on.
    """

    id: str
    name: str
    phase: WorkerPhase
    reason: str
    session: int
    reported: bool
    connected: bool
    clean: bool
    last_seen: datetime | None
    confirmed_dead: bool
    highest_term: int
    stops_within_s: float | None


@dataclass(frozen=True, slots=True)
class WorkersSnapshot:
    """All undeleted workers at one moment, and whose reign it is."""

    now: datetime
    term: int
    leads_since: datetime
    workers: tuple[WorkerState, ...]


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Limits on silence, in seconds, and the breaker.

    Attributes:
        unreachable_after_s: silence of a connected worker.
        disconnected_after_s: silence of one whose connection has dropped.
        lost_after_s: silence after which its instances are replaced.
        fence_margin_s: added to the time in which its processes end by themselves: the agent may have heard us later
            than we wrote that we heard it (the hub cuts what it cannot write for 20 s), and a kill takes its time.
        breaker_one_in: more than one in so many workers silent at once is taken for our own fault ...
        breaker_least: ... if they are at least so many.
    """

    unreachable_after_s: float = 15.0
    disconnected_after_s: float = 5.0
    lost_after_s: float = 60.0
    fence_margin_s: float = 45.0
    breaker_one_in: int = 3
    breaker_least: int = 2


@dataclass(frozen=True, slots=True)
class WorkerChange:
    """A worker's next phase. `old`, `session` and `last_seen` are what the write expects to find."""

    id: str
    name: str
    session: int
    old: WorkerPhase
    new: WorkerPhase
    reason: str
    fence_until: datetime | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    last_seen: datetime | None = None


@dataclass(frozen=True, slots=True)
class WorkerEffects:
    """What to write, and in how many seconds to look again; None: only when something happens."""

    changes: tuple[WorkerChange, ...]
    breaker_open: bool
    breaker_was_open: bool
    requeue_after_s: float | None
