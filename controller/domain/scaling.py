"""The autoscaler's input for a deployment, and the number of replicas that it wants.

Times are seconds of one process's monotonic clock. They mean nothing to another process.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from controller.domain.instances import Intent
from controller.domain.wanted import AUTOSCALER
from schemas.manifest.deployment import DeploymentSpec

AGENTS_SUFFICE_S: Final = 120.0  # after this silence of a gateway the request counts of agents suffice


class ScalingReason(StrEnum):
    """Why the autoscaler wants its number."""

    DEMAND = "demand"  # requests in flight and waiting
    WOKEN = "woken"  # from zero, for waiting requests
    KEPT_AWAKE = "kept_awake"  # by `gpuward wake --for`
    SATURATED = "saturated"  # the engines' own queues, or their KV caches
    STEADY = "steady"  # within the tolerance
    DOWN_WINDOW = "down_window"  # fewer are enough now, but were not throughout the down_window
    DEMAND_UNKNOWN = "demand_unknown"  # a gateway is silent
    NOT_WATCHED_YET = "not_watched_yet"  # a new leader keeps the number
    NOT_IDLE_YET = "not_idle_yet"
    IDLE = "idle_after"  # it falls asleep
    ASLEEP = "asleep"
    POLICY = "policy_idle"  # put to sleep by a utilization policy
    WAKE_WITHDRAWN = "wake_withdrawn"  # all waiting requests are gone before a replica ran


@dataclass(frozen=True, slots=True)
class ScalingRule:
    """The manifest's rule."""

    min: int  # 0: it may sleep
    max: int
    target: float  # requests in flight and waiting per replica
    window_s: float = 10.0  # of the mean demand by which replicas are added
    down_window_s: float = 300.0  # replicas are removed down to the largest wish within it
    idle_after_s: float = 900.0  # it sleeps after this long without requests, if `min` is 0
    dry_run: bool = False  # the number is only shown
    most: int = 1  # requests at one replica; more wait

    def clamp(self, number: int) -> int:
        return min(max(number, self.min), self.max)


@dataclass(frozen=True, slots=True)
class GatewayLoad:
    """A gateway's last report of a deployment, in numbers of requests."""

    mean: float = 0.0  # in flight and waiting, over its last second
    in_flight: int = 0  # at engines now
    waiting: int = 0
    arrived: int = 0  # since its start
    replicas: Mapping[str, int] = field(default_factory=dict)  # now, by instance; instances without any are left out

    @property
    def at_once(self) -> int:
        return self.in_flight + self.waiting


@dataclass(frozen=True, slots=True)
class Demand:
    """The reports of all gateways on a deployment at one time."""

    loads: tuple[GatewayLoad, ...] = ()  # of gateways with requests for it
    silent: tuple[str, ...] = ()  # names of gateways that do not report; their requests are unknown
    gateways: int = 1  # number that report
    silent_s: float = 0.0  # for which all silent gateways have been silent

    @property
    def known(self) -> bool:
        """Whether every gateway reports, and there is one."""
        return not self.silent and self.gateways > 0

    @property
    def mean(self) -> float:
        return sum(load.mean for load in self.loads)

    @property
    def at_once(self) -> int:
        return sum(load.at_once for load in self.loads)

    @property
    def waiting(self) -> int:
        return sum(load.waiting for load in self.loads)

    @property
    def arrived(self) -> int:
        """Requests since the gateways' starts. It falls when a gateway stops."""
        return sum(load.arrived for load in self.loads)


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The report of one running replica's engine; None: unknown."""

    queued: int | None = None  # requests in its own queue
    kv_use: float | None = None  # the used share of its KV cache, 0 to 1
    requests: int | None = None  # the most at once over its agent's last sampling period, of all gateways

    @property
    def known(self) -> bool:
        return self.queued is not None or self.kv_use is not None


@dataclass(frozen=True, slots=True)
class Replicas:
    """Numbers of the deployment's instances."""

    running: int = 0  # they serve
    placed: int = 0  # they start or are expected back
    pending: int = 0  # they wait for placement, or after a failure for the next attempt
    unhealthy: int = 0  # placed instances that hang or fail their probe
    failed: int = 0  # they failed or ended, or wait for the next attempt


@dataclass(frozen=True, slots=True)
class ScalingView:
    """A deployment at one time."""

    rule: ScalingRule
    number: int | None = None  # that the autoscaler wants at present; None: it has written none, so `min` runs
    replicas: Replicas = field(default_factory=Replicas)
    demand: Demand = field(default_factory=Demand)
    engines: tuple[EngineLoad, ...] = ()  # of running replicas that report anything
    wakes: int = 0  # requests for which gateways want to wake it
    awake_for_s: float = 0.0  # left of an operator's `wake`; 0: none
    slept_by_policy: bool = False  # a utilization policy has put it to sleep

    @property
    def at_engines(self) -> int | None:
        """Requests of all gateways at engines, silent gateways included, as agents observe them; an upper bound.

        None: unknown, as when a running replica is at its limit: then requests may wait elsewhere.
        """
        counts = [engine.requests for engine in self.engines if engine.requests is not None]
        if not counts or len(counts) != self.replicas.running or max(counts) >= self.rule.most:
            return None
        return sum(counts)

    @property
    def reported_by_agents(self) -> int:
        """Requests that count although a gateway is silent; 0 where all gateways report."""
        return 0 if self.demand.known else self.at_engines or 0

    @property
    def known(self) -> bool:
        """Whether the demand is known: all gateways report, or agents observe it all during a long silence."""
        demand = self.demand
        if demand.known:
            return True
        return demand.gateways > 0 and demand.silent_s >= AGENTS_SUFFICE_S and self.at_engines is not None

    @property
    def present(self) -> int:
        """The number of replicas that is wanted at present."""
        return self.rule.clamp(self.rule.min if self.number is None else self.number)


@dataclass(frozen=True, slots=True)
class Wish:
    """The wanted number of replicas, and why."""

    number: int  # within min and max
    needed: int  # for the present demand alone; the history keeps it
    reason: ScalingReason
    message: str
    next_check_s: float  # until the next decision, even without changes
    saturated: bool = False  # the number was raised for saturated engines


@dataclass(frozen=True, slots=True)
class StoredScaling:
    """The last wish, as stored."""

    number: int
    reason: str
    message: str
    silent: tuple[str, ...]
    dry_run: bool


@dataclass(frozen=True, slots=True)
class PolicyCap:
    """A cap that a policy's `scale_down` has set."""

    number: int
    set_at: float  # epoch seconds, which identify the cap
    window_s: float | None  # demand above the cap for this long lifts it; None: unknown, so the cap stays
    outgrown_s: float | None  # time for which demand has exceeded it, as stored; None if it does not


@dataclass(frozen=True, slots=True)
class ScalingSnapshot:
    """A deployment whose replicas follow the requests, as of one snapshot."""

    uid: str
    name: str
    generation: int
    spec: DeploymentSpec
    intents: tuple[Intent, ...]
    replicas: Replicas
    engine: str = ""  # that placement chose for its newest instance; empty: not chosen
    sequences: int | None = None  # concurrent requests for which its need was estimated
    stored: StoredScaling | None = None
    cap: PolicyCap | None = None  # of a policy, if demand may lift it

    @property
    def number(self) -> int | None:
        """The autoscaler's number; None if it has written none."""
        if self.spec.scaling.dry_run:
            return self.stored.number if self.stored is not None and self.stored.dry_run else None
        return next((i.min_replicas for i in self.intents if i.source == AUTOSCALER), None)


@dataclass(frozen=True, slots=True)
class ScalingStep:
    """The writes for one deployment."""

    snapshot: ScalingSnapshot
    wish: Wish
    evidence: Mapping[str, Any]  # JSON
    silent: tuple[str, ...]  # names of gateways that do not report
    applies: bool  # its number differs from the present number
    lifts_policy: bool = False  # a policy's sleep ends
    outgrown: bool = False  # demand exceeds a policy's cap
    lifts_cap: bool = False  # demand has exceeded it throughout the policy's window, so the cap ends
    request_id: str = ""  # of the first waiting request, if it is woken

    @property
    def number_before(self) -> int:
        low, high = self.snapshot.spec.replica_bounds
        return min(max(low if self.snapshot.number is None else self.snapshot.number, low), high)
