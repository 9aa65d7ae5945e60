"""What a controller counts of serving its API: connections, bodies, the event loop, and the certificate of its port."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge


class ServingMetrics:
    """Counters and gauges of one controller's server.

    Args:
        registry: as of `Metrics`.
    """

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
        """`expires_s` returns when the certificate of the port ends; `problem`, why its files cannot be used now."""
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
        """`expires_s`: when the certificate of the authority ends that agents and clients learn."""
        Gauge(
            "gpuward_certificate_authority_expiry_timestamp_seconds",
            "When the certificate authority ends that agents and clients learn, in seconds since 1970; absent without.",
            registry=self._registry,
        ).set(expires_s)

    def body_refused(self, bound: str) -> None:
        """A request's body did not fit into the bound of its `key` or of `all`."""
        self._bodies_refused.labels(bound).inc()

    def bodies_held(self, read: Callable[[], float]) -> None:
        """`read` returns the bytes that bodies hold."""
        self._bodies_held.set_function(read)

    def loop_lag(self, read: Callable[[], float]) -> None:
        """`read` returns the event loop's recent lag in seconds."""
        self._loop_lag.set_function(read)
