"""A deployment as the autoscaler sees it, and the number of replicas that it wants. Frozen.

Times are seconds of one process's monotonic clock. They mean nothing to another process.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from controller.domain.instances import IntentFacts
from controller.domain.wanted import AUTOSCALER
from schemas.manifest.deployment import DeploymentSpec

AGENTS_SUFFICE_S: Final = 120.0  # a gateway is silent for that long before what agents see of its requests suffices


class ScalingReason(StrEnum):
    """Why the autoscaler wants its number."""

    DEMAND = "demand"  # requests in flight and waiting
    WOKEN = "woken"  # from zero, for requests that wait
    KEPT_AWAKE = "kept_awake"  # by `gpuward wake --for`
    SATURATED = "saturated"  # the engines' own queues, or their KV caches
    STEADY = "steady"  # within the tolerance
    DOWN_WINDOW = "down_window"  # less is enough now, but was not for the whole down_window
    DEMAND_UNKNOWN = "demand_unknown"  # a gateway is silent
    NOT_WATCHED_YET = "not_watched_yet"  # a new leader keeps the number
    NOT_IDLE_YET = "not_idle_yet"
    IDLE = "idle_after"  # it goes to sleep
    ASLEEP = "asleep"
    POLICY = "policy_idle"  # put to sleep by a utilization policy
    WAKE_WITHDRAWN = "wake_withdrawn"  # all requests that waited are gone, and no replica has run yet


@dataclass(frozen=True, slots=True)
class ScalingRule:
    """What the manifest demands.

    Attributes:
        min: fewest replicas; 0: it may sleep.
        max: most replicas.
        target: requests in flight and waiting per replica.
        window_s: demand is a mean over so long before replicas are added.
        down_window_s: replicas are removed down to the largest wish of so long.
        idle_after_s: without requests for that long it sleeps, where `min` is 0.
        dry_run: the number is only shown.
        most: requests at one replica; beyond that they wait.
    """

    min: int
    max: int
    target: float
    window_s: float = 10.0
    down_window_s: float = 300.0
    idle_after_s: float = 900.0
    dry_run: bool = False
    most: int = 1

    def clamp(self, number: int) -> int:
        """The number within min and max."""
        return min(max(number, self.min), self.max)


@dataclass(frozen=True, slots=True)
class GatewayLoad:
    """A gateway's last report of a deployment.

    Attributes:
        mean: requests in flight and waiting, as the mean of its last second.
        in_flight: requests at engines now.
        waiting: requests that it holds now.
        arrived: requests since its start.
        replicas: requests at each replica now, by the instance; those without any are left out.
    """

    mean: float = 0.0
    in_flight: int = 0
    waiting: int = 0
    arrived: int = 0
    replicas: Mapping[str, int] = field(default_factory=dict)

    @property
    def at_once(self) -> int:
        """Requests that it has now."""
        return self.in_flight + self.waiting


@dataclass(frozen=True, slots=True)
class Demand:
    """The reports of all gateways on a deployment at one moment.

    Attributes:
        loads: of those that have requests for it.
        silent: names of those that do not report; what they have is unknown.
        gateways: how many report.
        silent_s: for how long all of the silent ones have been so.
    """

    loads: tuple[GatewayLoad, ...] = ()
    silent: tuple[str, ...] = ()
    gateways: int = 1
    silent_s: float = 0.0

    @property
    def known(self) -> bool:
        """Whether every gateway reports, and there is one."""
        return not self.silent and self.gateways > 0

    @property
    def mean(self) -> float:
        """Requests in flight and waiting, as the mean of the last second."""
        return sum(load.mean for load in self.loads)

    @property
    def at_once(self) -> int:
        """Requests in flight and waiting now."""
        return sum(load.at_once for load in self.loads)

    @property
    def waiting(self) -> int:
        """Requests that gateways hold now."""
        return sum(load.waiting for load in self.loads)

    @property
    def arrived(self) -> int:
        """Requests since the gateways' starts. It falls when a gateway goes."""
        return sum(load.arrived for load in self.loads)


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The report of one running replica's engine; None: unknown.

    Attributes:
        queued: requests in its own queue.
        kv_use: the share of its KV cache that is in use, 0 to 1.
        requests: the most at once over its agent's last sampling period, of all gateways.
    """

    queued: int | None = None
    kv_use: float | None = None
    requests: int | None = None

    @property
    def known(self) -> bool:
        """Whether the engine reports its queue or cache."""
        return self.queued is not None or self.kv_use is not None


@dataclass(frozen=True, slots=True)
class Replicas:
    """The deployment's instances, counted.

    Attributes:
        running: they serve.
        placed: they have a place, and start or are expected back.
        pending: they wait for a place, or after a failure for the next attempt.
        unhealthy: of those placed, such as hang or fail their probe.
        failed: they count as replicas, but have failed or ended; of those pending, such as wait for the next attempt.
    """

    running: int = 0
    placed: int = 0
    pending: int = 0
    unhealthy: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class ScalingView:
    """A deployment at one moment.

    Attributes:
        rule: of its manifest.
        number: that the autoscaler wants at present; None if it has written none, so `min` runs.
        replicas: its instances.
        demand: of all gateways.
        engines: one for each running replica that says anything.
        wakes: requests for which gateways ask to wake it.
        awake_for_s: it is to stay awake for that long by an operator's `wake`; 0: not.
        slept_by_policy: a utilization policy has put it to sleep.
    """

    rule: ScalingRule
    number: int | None = None
    replicas: Replicas = field(default_factory=Replicas)
    demand: Demand = field(default_factory=Demand)
    engines: tuple[EngineLoad, ...] = ()
    wakes: int = 0
    awake_for_s: float = 0.0
    slept_by_policy: bool = False

    @property
    def at_engines(self) -> int | None:
        """Requests at engines of all gateways, also of silent ones, as agents see them; at least as many as there are.

        None: unknown. Only where each running replica is below its limit does it say all: then none waits elsewhere.
        """
        counts = [engine.requests for engine in self.engines if engine.requests is not None]
        if not counts or len(counts) != self.replicas.running or max(counts) >= self.rule.most:
            return None
        return sum(counts)

    @property
    def seen_by_agents(self) -> int:
        """Requests that count although a gateway is silent; 0 where all gateways report."""
        return 0 if self.demand.known else self.at_engines or 0

    @property
    def known(self) -> bool:
        """Whether the demand is known: all gateways report, or agents see it all while one is silent for long."""
        demand = self.demand
        if demand.known:
            return True
        return demand.gateways > 0 and demand.silent_s >= AGENTS_SUFFICE_S and self.at_engines is not None

    @property
    def present(self) -> int:
        """The number that is wanted at present."""
        return self.rule.clamp(self.rule.min if self.number is None else self.number)


@dataclass(frozen=True, slots=True)
class Wish:
    """The wanted number, why, and when to look again although nothing has changed.

    Attributes:
        number: within min and max.
        needed: what the present demand alone asks for; the history remembers it.
        saturated: the number was raised for saturated engines.
    """

    number: int
    needed: int
    reason: ScalingReason
    message: str
    next_check_s: float
    saturated: bool = False


@dataclass(frozen=True, slots=True)
class StoredScaling:
    """What is stored about the last wish."""

    number: int
    reason: str
    message: str
    silent: tuple[str, ...]
    dry_run: bool


@dataclass(frozen=True, slots=True)
class PolicyCap:
    """A cap that a policy's `scale_down` has set.

    Attributes:
        number: most replicas.
        set_at: epoch seconds; a later cap is another one.
        window_s: demand that exceeds the cap for that long lifts it; None: unknown, so it stays.
        outgrown_s: for how long demand has exceeded it, as stored; None if it does not.
    """

    number: int
    set_at: float
    window_s: float | None
    outgrown_s: float | None


@dataclass(frozen=True, slots=True)
class ScalingFacts:
    """A deployment whose replicas follow the requests, read at one moment.

    Attributes:
        engine: that placement chose for its newest instance; empty: not chosen.
        sequences: concurrent requests for which its need was estimated.
        stored: None if nothing is stored yet.
        cap: of a policy, where demand may lift it.
    """

    uid: str
    name: str
    generation: int
    spec: DeploymentSpec
    intents: tuple[IntentFacts, ...]
    replicas: Replicas
    engine: str = ""
    sequences: int | None = None
    stored: StoredScaling | None = None
    cap: PolicyCap | None = None

    @property
    def number(self) -> int | None:
        """The autoscaler's number; None if it has written none."""
        if self.spec.scaling.dry_run:
            return self.stored.number if self.stored is not None and self.stored.dry_run else None
        return next((i.min_replicas for i in self.intents if i.source == AUTOSCALER), None)


@dataclass(frozen=True, slots=True)
class ScalingStep:
    """What is written for one deployment.

    Attributes:
        facts: that it rests on.
        wish: the number.
        evidence: for it, as JSON.
        silent: names of gateways that do not report.
        applies: its number differs from the present one.
        lifts_policy: a policy's sleep ends.
        outgrown: demand asks for more than a policy's cap.
        lifts_cap: it has done so for the policy's whole window, so the cap ends.
        request_id: of the first request that waits, where it is woken.
    """

    facts: ScalingFacts
    wish: Wish
    evidence: Mapping[str, Any]
    silent: tuple[str, ...]
    applies: bool
    lifts_policy: bool = False
    outgrown: bool = False
    lifts_cap: bool = False
    request_id: str = ""

    @property
    def number_before(self) -> int:
        """The number before it."""
        low, high = self.facts.spec.replica_bounds
        return min(max(low if self.facts.number is None else self.facts.number, low), high)
