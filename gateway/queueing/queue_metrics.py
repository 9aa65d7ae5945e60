"""Metrics of requests that wait, are refused or given up, and of the models that wake for them."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

T = TypeVar("T", Counter, Gauge, Histogram)
_KEPT_S: Final = 3600.0
_MOST_GONE: Final = 100  # deployments; the series of the oldest of more end earlier
_BUCKETS_S: Final = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


@dataclass(slots=True)
class _Series:
    """All series of one deployment: families with labels, and since when it is gone."""

    labels: set[tuple[Any, tuple[str, ...]]] = field(default_factory=set)
    absent_since: float | None = None


class QueueMetrics:
    """Metrics of one gateway process, by the deployment's name; without one where no deployment has the name."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._waiting = Gauge(
            "gpuward_gateway_requests_waiting",
            "Requests to models that wait at this gateway: for a model to wake, or for a replica below its limit.",
            ["deployment"],
            registry=registry,
        )
        self._waited = Histogram(
            "gpuward_gateway_waited_seconds",
            "How long requests waited at this gateway before they went to a replica.",
            ["deployment"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self._wakes = Counter(
            "gpuward_gateway_wakes",
            "Times that requests at this gateway asked for a sleeping deployment to wake.",
            ["deployment"],
            registry=registry,
        )
        self._withdrawn = Counter(
            "gpuward_gateway_wakes_withdrawn",
            "Wakes that this gateway withdrew, since all requests that waited were given up by their clients.",
            ["deployment"],
            registry=registry,
        )
        self._refusals = Counter(
            "gpuward_gateway_refusals",
            "Requests to models that the gateway refused, by the code of its error.",
            ["deployment", "code"],
            registry=registry,
        )
        self._cancels = Counter(
            "gpuward_gateway_cancels",
            "Requests to models whose clients left before their end, by how far they were.",
            ["deployment", "state"],
            registry=registry,
        )
        self._series: dict[str, _Series] = {}

    def waiting(self, deployment: str, number: int) -> None:
        self._of(self._waiting, deployment).set(number)

    def waited(self, deployment: str, seconds: float) -> None:
        self._of(self._waited, deployment).observe(seconds)

    def wake(self, deployment: str) -> None:
        self._of(self._wakes, deployment).inc()

    def wake_withdrawn(self, deployment: str) -> None:
        self._of(self._withdrawn, deployment).inc()

    def refused(self, deployment: str, code: str) -> None:
        self._of(self._refusals, deployment, code).inc()

    def cancelled(self, deployment: str, state: str) -> None:
        self._of(self._cancels, deployment, state).inc()

    def _of(self, family: T, *labels: str) -> T:
        """The series with these labels, of which the first one is the deployment."""
        self._series.setdefault(labels[0], _Series()).labels.add((family, labels))
        return family.labels(*labels)

    def keep(self, deployments: Collection[str], now: float) -> None:
        """Ends the series of deployments that are gone: at once what waits, the remaining ones after an hour.

        Of more than `_MOST_GONE` the oldest end at once: names come and go for ever.
        """
        for name, series in tuple(self._series.items()):
            if not name or name in deployments:
                series.absent_since = None
                continue
            if series.absent_since is None:
                series.absent_since = now
            self._end(name, series, all_=now - series.absent_since > _KEPT_S)
        gone = sorted(
            (series.absent_since, name) for name, series in self._series.items() if series.absent_since is not None
        )
        for _, name in gone[:-_MOST_GONE]:
            self._end(name, self._series[name], all_=True)

    def _end(self, name: str, series: _Series, *, all_: bool) -> None:
        for family, labels in tuple(series.labels):
            if all_ or family is self._waiting:
                family.remove(*labels)
                series.labels.remove((family, labels))
        if all_:
            del self._series[name]
