"""What the controller counts of its work, under the contract's names. Figures that are read from rows are not here."""

import contextlib
from collections.abc import Mapping
from typing import Literal, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_OUTCOME_LABELS = {"requeue": "again"}  # the label is older than the outcome's name, and dashboards match on it
_STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_CANCEL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_PLACEMENT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_START_BUCKETS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0)


CountOutcome: TypeAlias = Literal["started", "completed", "cancelled", "failed"]


class Metrics:
    """Counters and histograms of one controller, for its loops, computations and placement.

    Args:
        registry: one for each controller, so that several controllers can run in one process.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._reconcile_seconds = Histogram(
            "gpuward_reconcile_seconds",
            "Time of one reconcile step, per key and outcome.",
            ["kind", "outcome"],
            registry=registry,
            buckets=_STEP_BUCKETS,
        )
        self._queue_depth = Gauge(
            "gpuward_queue_depth", "Keys that are ready and wait for a worker.", ["kind"], registry=registry
        )
        self._in_flight = Gauge(
            "gpuward_computations_in_flight", "Child processes of computations that are running.", registry=registry
        )
        self._computations = Counter(
            "gpuward_computations_total",
            "Computations; at rest started equals completed + cancelled + failed.",
            ["purpose", "outcome"],
            registry=registry,
        )
        self._cancel_seconds = Histogram(
            "gpuward_computation_cancel_seconds",
            "From the commit that made a computation obsolete until it was gone.",
            registry=registry,
            buckets=_CANCEL_BUCKETS,
        )
        self._placements = Counter(
            "gpuward_placements_total", "Placement decisions on pending instances.", ["outcome"], registry=registry
        )
        self._placement_seconds = Histogram(
            "gpuward_placement_seconds",
            "From pending to committed claims.",
            registry=registry,
            buckets=_PLACEMENT_BUCKETS,
        )
        self._starts = Histogram(
            "gpuward_start_seconds",
            "Time that starts of instances took, by phase, and in all (`total`).",
            ["phase"],
            registry=registry,
            buckets=_START_BUCKETS,
        )
        self._restarts = Counter(
            "gpuward_instance_restarts_total",
            "Restarts of a deployment's instances after an end, counted by the leader since it leads.",
            ["deployment"],
            registry=registry,
        )
        self._evaluations = Counter(
            "gpuward_policy_evaluations_total",
            "Verdicts of utilization policies on instances.",
            ["verdict"],
            registry=registry,
        )
        for verdict in ("idle", "busy", "unknown"):
            self._evaluations.labels(verdict)

    def observed(self, kind: str, outcome: str, seconds: float) -> None:
        """One key of `kind` got `outcome` from a step that took `seconds`."""
        self._reconcile_seconds.labels(kind, _OUTCOME_LABELS.get(outcome, outcome)).observe(seconds)

    def depth(self, kind: str, n: int) -> None:
        """`n` keys of `kind` are ready and wait for a worker."""
        self._queue_depth.labels(kind).set(n)

    def in_flight(self, n: int) -> None:
        """`n` computations have a child now."""
        self._in_flight.set(n)

    def count(self, purpose: str, outcome: CountOutcome) -> None:
        """A computation was admitted (`started`), or has ended."""
        self._computations.labels(purpose, outcome).inc()

    def cancel_seconds(self, seconds: float) -> None:
        """A cancelled computation was gone `seconds` after the commit that made it obsolete."""
        self._cancel_seconds.observe(max(seconds, 0.0))

    def placed(self, outcome: str, n: int) -> None:
        """`n` instances were `placed`, `unplaced` or `lost` to a race."""
        if n:
            self._placements.labels(outcome).inc(n)

    def placement_seconds(self, seconds: float) -> None:
        """An instance's claims were committed `seconds` after it became pending."""
        self._placement_seconds.observe(max(seconds, 0.0))

    def started(self, durations: Mapping[str, float]) -> None:
        """A start took so many seconds in each of these phases."""
        for phase, seconds in durations.items():
            self._starts.labels(phase).observe(max(seconds, 0.0))

    def restarted(self, deployment: str) -> None:
        """An instance of a deployment restarts after an end."""
        self._restarts.labels(deployment).inc()

    def finished(self, deployment: str) -> None:
        """A deployment is gone: its series ends."""
        with contextlib.suppress(KeyError):  # none of its instances ever restarted
            self._restarts.remove(deployment)

    def judged(self, verdict: str) -> None:
        """A utilization policy judged an instance `idle`, `busy` or `unknown`."""
        self._evaluations.labels(verdict).inc()


class HubMetrics:
    """Counters of what agents send and cannot be taken."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._impossible = Counter(
            "gpuward_impossible_readings_total",
            "Readings of GPUs and engines that cannot be, such as a utilization of 101 %. They are unknown.",
            registry=registry,
        )
        self._dropped = Counter(
            "gpuward_sampling_periods_dropped_total",
            "Sampling periods of agents that could not be taken and are lost.",
            registry=registry,
        )

    def doubted(self, impossible: int, dropped: int) -> None:
        """A message had so many impossible readings, and so many sampling periods that could not be taken."""
        self._impossible.inc(impossible)
        self._dropped.inc(dropped)
