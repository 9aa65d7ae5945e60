"""Metrics of requests that wait, are refused or given up, and of the models that wake for them."""

from collections.abc import Collection
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_BUCKETS_S: Final = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


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
        self._deployments: set[str] = set()

    def waiting(self, deployment: str, number: int) -> None:
        """So many wait now."""
        self._deployments.add(deployment)
        self._waiting.labels(deployment).set(number)

    def waited(self, deployment: str, seconds: float) -> None:
        """One went on."""
        self._waited.labels(deployment).observe(seconds)

    def wake(self, deployment: str) -> None:
        """Counts one."""
        self._wakes.labels(deployment).inc()

    def wake_withdrawn(self, deployment: str) -> None:
        """Counts one."""
        self._withdrawn.labels(deployment).inc()

    def refused(self, deployment: str, code: str) -> None:
        """Counts one."""
        self._refusals.labels(deployment, code).inc()

    def cancelled(self, deployment: str, state: str) -> None:
        """Counts one."""
        self._cancels.labels(deployment, state).inc()

    def keep(self, deployments: Collection[str]) -> None:
        """Ends the series of what waits for deployments that are gone."""
        for gone in self._deployments.difference(deployments):
            self._waiting.remove(gone)
        self._deployments.intersection_update(deployments)
