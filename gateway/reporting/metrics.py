"""The gateway's metrics."""

from collections import deque
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

_REMEMBER_S: Final = 10.0


class GatewayMetrics:
    """Metrics of one gateway process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._closed = Counter(
            "gpuward_gateway_connections_closed",
            "Connections of clients that the gateway closed, and requests that it refused, by the bound that was met.",
            ["reason"],
            registry=self.registry,
        )
        self._refused = Counter(
            "gpuward_gateway_bodies_refused",
            "Requests to models that were refused since too many bytes of bodies were in flight, by the bound.",
            ["bound"],
            registry=self.registry,
        )
        self._held = Gauge(
            "gpuward_gateway_bodies_in_flight_bytes",
            "Bytes of bodies of requests to models that are held.",
            registry=self.registry,
        )
        self._loop_lag = Gauge(
            "gpuward_gateway_loop_lag_seconds",
            "How late the event loop of the gateway was at worst in the last ten seconds.",
            registry=self.registry,
        )

    def loop_lag(self, read: Callable[[], float]) -> None:
        self._loop_lag.set_function(read)

    def certificate(self, expires_s: Callable[[], float], problem: Callable[[], str]) -> None:
        ends = Gauge(
            "gpuward_gateway_certificate_expiry_timestamp_seconds",
            "When the certificate of the port ends, in seconds since 1970; absent without TLS.",
            registry=self.registry,
        )
        ends.set_function(expires_s)
        failed = Gauge(
            "gpuward_gateway_certificate_not_replaced",
            "1 while the files of the certificate cannot be used, and an earlier one is shown; absent without TLS.",
            registry=self.registry,
        )
        failed.set_function(lambda: float(bool(problem())))

    def connection_closed(self, reason: str) -> None:
        self._closed.labels(reason).inc()

    def body_refused(self, bound: str) -> None:
        self._refused.labels(bound).inc()

    def bodies_held(self, read: Callable[[], float]) -> None:
        self._held.set_function(read)


class LoopLag:
    """The worst lag of the last ten seconds. All times are the loop's, in seconds."""

    def __init__(self) -> None:
        self._worst: deque[tuple[float, float]] = deque()  # when, and how late a sweep was; lags falling

    def note(self, now: float, lag_s: float) -> None:
        while self._worst and self._worst[-1][1] <= lag_s:
            self._worst.pop()
        self._worst.append((now, lag_s))
        while now - self._worst[0][0] > _REMEMBER_S:
            self._worst.popleft()

    def seconds(self, now: float, due: float) -> float:
        """The worst lag; a sweep that was due before `now` counts, too."""
        worst = self._worst[0][1] if self._worst else 0.0
        return max(0.0, worst, now - due)
