"""The workers as of one snapshot, and the changes of their phases. Times are the database's."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from controller.domain.phases import WorkerPhase
from schemas.api.requests import DEFAULT_DRAIN_S, DrainBody

# Reasons of a worker's phase.
SILENT = "silent"
DISCONNECTED = "disconnected"
AGENT_STOPPED = "agent_stopped"
TERM_AHEAD = "term_ahead"
BREAKER_OPEN = "breaker_open"
CONFIRMED_DEAD = "confirmed_dead"
TWO_IDENTITIES: Final = "two_identities"
RECONNECTS_TOO_OFTEN: Final = "reconnects_too_often"
QUARANTINED: Final = frozenset({TWO_IDENTITIES, RECONNECTS_TOO_OFTEN})
HELLOS_KEPT: Final = 16  # more than a decision needs


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One undeleted worker."""

    id: str
    name: str
    phase: WorkerPhase
    reason: str
    session: int  # number of its newest hello
    reported: bool  # it has sent a full report at least once
    connected: bool  # its newest session is open, by the hub's last write
    clean: bool  # its agent shut down cleanly, or is shutting down
    last_seen: datetime | None  # time of its newest message
    confirmed_dead: bool  # by the operator
    highest_term: int  # that its agent knows; an agent refuses commands of lower terms
    stops_within_s: float | None  # time in which all its processes end without a controller; None: some continue
    quarantine: str = ""  # a reason code, for another `quarantined_for_s`; empty: none
    quarantined_for_s: float = 0.0
    reported_at: datetime | None = None  # time of its newest full report


@dataclass(frozen=True, slots=True)
class WorkersSnapshot:
    """All undeleted workers, and the current term."""

    now: datetime
    term: int
    leads_since: datetime
    workers: tuple[WorkerState, ...]
    cut_at: datetime | None = None  # when the loss of commits was noticed, until it is settled


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Limits on silence, in seconds, and the breaker."""

    unreachable_after_s: float = 15.0  # silence of a connected worker
    disconnected_after_s: float = 5.0  # silence of a worker whose connection has dropped
    lost_after_s: float = 60.0  # silence after which its instances are replaced
    # Added to the time in which its processes end by themselves. The agent may have received a message after the hub's
    # last write of its heartbeat (the hub closes connections after 25 s without writes), and a kill takes time.
    fence_margin_s: float = 45.0
    settle_s: float = 15.0  # for agents to report what runs after a loss of commits; until then nothing is placed
    breaker_one_in: int = 3  # the breaker opens when more than one in this many workers is silent,
    breaker_least: int = 2  # and at least this many are


@dataclass(frozen=True, slots=True)
class WorkerChange:
    """A worker's next phase. The write expects to find `old`, `session` and `last_seen`."""

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
    """The changes to write."""

    changes: tuple[WorkerChange, ...]
    breaker_open: bool
    breaker_was_open: bool
    requeue_after_s: float | None  # None: on the next hint
    unsettled: bool = False  # the ledger lost commits, and agents have not reported yet what runs
    settles: bool = False  # they have, or their time is over


@dataclass(frozen=True, slots=True)
class Drain:
    """A drain. `until` None: everything stops at once, tasks too."""

    until: datetime | None = None
    restarts_tasks: bool = False


def drain_of(request: DrainBody, at: datetime, present: Drain | None) -> Drain:
    """The drain by a request. What the request leaves out stays as in the drain under way (`present`)."""
    if request.now:
        return Drain()
    until = present.until if present is not None else at + timedelta(seconds=DEFAULT_DRAIN_S)
    if request.timeout is not None:
        until = at + timedelta(seconds=request.timeout)
    tasks = present is not None and present.restarts_tasks
    return Drain(until, tasks if request.restart_tasks is None else request.restart_tasks)


@dataclass(frozen=True, slots=True)
class PastHello:
    """One hello of a worker. `identity` distinguishes agents; `address` is where an operator finds the agent."""

    at: datetime
    identity: str
    address: str


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A quarantine of a worker, with the addresses concerned, the newest last."""

    reason: str
    until: datetime
    addresses: tuple[str, ...]
