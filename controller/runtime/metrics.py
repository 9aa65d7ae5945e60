"""Counters of one process under their public names. Figures that are read from rows are in `store/views/metrics.py`."""

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_OUTCOME_LABELS = {"requeue": "again"}  # the label is older than the outcome's name, and dashboards match on it
_STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_CANCEL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_PLACEMENT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_START_BUCKETS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0)


CountOutcome: TypeAlias = Literal["started", "completed", "cancelled", "failed"]


class Metrics:
    """Loops, computations and placement. Each controller has its own registry: a process may run several."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        gauge = partial(Gauge, registry=registry)
        self._reconcile_seconds = histogram(
            "gpuward_reconcile_seconds",
            "Time of one reconcile step, per key and outcome.",
            ["kind", "outcome"],
            buckets=_STEP_BUCKETS,
        )
        self._queue_depth = gauge("gpuward_queue_depth", "Keys that are ready and wait for a worker.", ["kind"])
        self._in_flight = gauge("gpuward_computations_in_flight", "Child processes of computations that are running.")
        self._computations = counter(
            "gpuward_computations_total",
            "Computations; at rest started equals completed + cancelled + failed.",
            ["purpose", "outcome"],
        )
        self._cancel_seconds = histogram(
            "gpuward_computation_cancel_seconds",
            "From the commit that made a computation obsolete until it was gone.",
            buckets=_CANCEL_BUCKETS,
        )
        self._placements = counter("gpuward_placements_total", "Placement decisions on pending instances.", ["outcome"])
        self._placement_seconds = histogram(
            "gpuward_placement_seconds", "From pending to committed claims.", buckets=_PLACEMENT_BUCKETS
        )
        self._starts = histogram(
            "gpuward_start_seconds",
            "Time that starts of instances took, by phase, and in all (`total`).",
            ["phase"],
            buckets=_START_BUCKETS,
        )
        self._restarts = counter(
            "gpuward_instance_restarts_total",
            "Restarts of a deployment's instances after an end, counted by the leader since it leads.",
            ["deployment"],
        )
        self._evaluations = counter(
            "gpuward_policy_evaluations_total", "Verdicts of utilization policies on instances.", ["verdict"]
        )
        for verdict in ("idle", "busy", "unknown"):
            self._evaluations.labels(verdict)

    def observed(self, kind: str, outcome: str, seconds: float) -> None:
        self._reconcile_seconds.labels(kind, _OUTCOME_LABELS.get(outcome, outcome)).observe(seconds)

    def depth(self, kind: str, n: int) -> None:
        self._queue_depth.labels(kind).set(n)

    def in_flight(self, n: int) -> None:
        self._in_flight.set(n)

    def count(self, purpose: str, outcome: CountOutcome) -> None:
        self._computations.labels(purpose, outcome).inc()

    def cancel_seconds(self, seconds: float) -> None:
        self._cancel_seconds.observe(max(seconds, 0.0))

    def placed(self, outcome: str, n: int) -> None:
        """`outcome`: `placed`, `unplaced`, or `lost` to a race."""
        if n:
            self._placements.labels(outcome).inc(n)

    def placement_seconds(self, seconds: float) -> None:
        self._placement_seconds.observe(max(seconds, 0.0))

    def started(self, durations: Mapping[str, float]) -> None:
        for phase, seconds in durations.items():
            self._starts.labels(phase).observe(max(seconds, 0.0))

    def restarted(self, deployment: str) -> None:
        self._restarts.labels(deployment).inc()

    def finished(self, deployment: str) -> None:
        with contextlib.suppress(KeyError):  # none of its instances ever restarted
            self._restarts.remove(deployment)

    def judged(self, verdict: str) -> None:
        self._evaluations.labels(verdict).inc()


class HubMetrics:
    """Agents' readings and sampling periods that the hub does not accept."""

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
        self._impossible.inc(impossible)
        self._dropped.inc(dropped)


class ServingMetrics:
    """The API's server: bodies, the event loop, and the certificate of its port."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        closed = Counter(
            "gpuward_connections_closed_total",
            "Always 0, kept for boards: gateways bound connections (`gpuward_gateway_connections_closed_total`).",
            ["reason"],
            registry=registry,
        )
        for reason in ("bound", "head", "busy", "idle", "body", "refused"):
            closed.labels(reason)
        self._bodies_refused = Counter(
            "gpuward_bodies_refused_total",
            "Requests refused because bodies in flight, of one `key` or of `all`, hold too many bytes.",
            ["bound"],
            registry=registry,
        )
        for bound in ("key", "all"):
            self._bodies_refused.labels(bound)
        self._loop_lag = Gauge(
            "gpuward_controller_loop_lag_seconds",
            "How late the event loop of the controller was at worst in the last ten seconds.",
            registry=registry,
        )
        self._bodies_held = Gauge(
            "gpuward_bodies_in_flight_bytes", "Bytes that requests' bodies hold now.", registry=registry
        )

    def certificate(self, expires_s: Callable[[], float], problem: Callable[[], str]) -> None:
        """`problem`: why the files of the port's certificate cannot be used now; empty if they can."""
        ends = Gauge(
            "gpuward_certificate_expiry_timestamp_seconds",
            "When the certificate of the public port ends, in seconds since 1970; absent without TLS.",
            registry=self._registry,
        )
        ends.set_function(expires_s)
        failed = Gauge(
            "gpuward_certificate_not_replaced",
            "1 while the files of the certificate cannot be used, and an earlier one is shown; absent without TLS.",
            registry=self._registry,
        )
        failed.set_function(lambda: float(bool(problem())))

    def authority(self, expires_s: float) -> None:
        Gauge(
            "gpuward_certificate_authority_expiry_timestamp_seconds",
            "When the certificate authority ends that agents and clients learn, in seconds since 1970; absent without.",
            registry=self._registry,
        ).set(expires_s)

    def body_refused(self, bound: str) -> None:
        """`bound`: `key` or `all`."""
        self._bodies_refused.labels(bound).inc()

    def bodies_held(self, read: Callable[[], float]) -> None:
        self._bodies_held.set_function(read)

    def loop_lag(self, read: Callable[[], float]) -> None:
        self._loop_lag.set_function(read)
