"""Metrics of requests to models. Each costs a look-up and some additions; families are made at each scrape."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.live.key_use import Counts
from gateway.usage.usage_record import UsageRecord
from schemas.api.models import FORM_PATHS, MODEL_PATHS

if TYPE_CHECKING:
    from gateway.requests.request import Request

Key = tuple[str, str, str]  # deployment, revision, endpoint
_LABELS: Final = ("deployment", "revision", "endpoint")
_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_TOKEN_SECONDS: Final = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)
_CLASSES: Final = ("", "1xx", "2xx", "3xx", "4xx", "5xx")
CLIENT_GONE: Final = 499
_SERVER_ERROR: Final = 500
ENDPOINTS: Final = frozenset((*MODEL_PATHS, *FORM_PATHS))
_KEPT_S: Final = 3600.0  # series of what is gone
_MOST_GONE: Final = 100  # series of what is gone; the oldest of more end earlier


class Spread:
    """Observations in buckets."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        counts, below = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            below += count
            counts.append((bound, float(below)))
        return counts


class Series:
    """The figures of one deployment, revision and endpoint."""

    __slots__ = ("absent_since", "cached", "completion", "each_token", "first_token", "prompt", "requests", "seconds")

    def __init__(self) -> None:
        self.requests: dict[str, int] = {}
        self.seconds = Spread(_SECONDS)
        self.first_token = Spread(_SECONDS)
        self.each_token = Spread(_TOKEN_SECONDS)
        self.prompt = self.cached = self.completion = 0
        self.absent_since: float | None = None  # its revision has no replica, or its deployment is gone


class RequestMetrics:
    """Metrics of one gateway process. Labels are names of deployments, revisions and endpoints alone."""

    def __init__(
        self, registry: CollectorRegistry, in_flight: Callable[[], Mapping[str, int]] = dict[str, int]
    ) -> None:
        self._series: dict[Key, Series] = {}
        self._retries: dict[tuple[str, str, str], int] = {}
        self.in_flight = in_flight
        for family in (
            _Family(self._requests, (*_LABELS, "status")),
            _Family(self._tokens, (*_LABELS, "kind")),
            _Family(self._seconds, _LABELS),
            _Family(self._first_token, _LABELS),
            _Family(self._each_token, _LABELS),
            _Family(self._all_retries, ("deployment", "revision", "reason")),
            _Family(self._all_in_flight, ("deployment",)),
        ):
            registry.register(family)

    def count(self, request: "Request", usage: UsageRecord | None, *, broken: bool) -> None:
        """Counts the end of a request. `broken`: its answer broke off."""
        if not (request.status or request.client_gone or broken):
            return  # a list of models
        status = CLIENT_GONE if request.client_gone else _SERVER_ERROR if broken else request.status
        deployment = request.model if request.shared.routes.table.knows(request.model) else ""
        endpoint = request.path if request.path in ENDPOINTS else ""
        revision = request.exchange.revision if deployment else ""
        ended_s = request.loop.time() - request.arrived
        series = self.ended((deployment, revision, endpoint), status, ended_s)
        if usage is not None and usage.counts is not None:
            count_tokens(series, usage.counts, streamed=usage.streamed, ended_s=ended_s)

    def ended(self, key: Key, status: int, seconds: float) -> Series:
        """Counts a request; `status` 499: its client left. Returns what takes its tokens."""
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = Series()
        group = "499" if status == CLIENT_GONE else _CLASSES[status // 100]
        series.requests[group] = series.requests.get(group, 0) + 1
        series.seconds.observe(seconds)
        return series

    def retried(self, deployment: str, revision: str, reason: str) -> None:
        """Counts a request that a replica did not take."""
        key = (deployment, revision, reason)
        self._retries[key] = self._retries.get(key, 0) + 1

    def keep(self, present: Collection[tuple[str, str]], now: float) -> None:
        """Ends the series of deployments and revisions that have had no replica for an hour.

        Of more than `_MOST_GONE` the oldest end at once: names come and go for ever.
        """
        for key, series in tuple(self._series.items()):
            if not key[0] or key[:2] in present:
                series.absent_since = None
            elif series.absent_since is None:
                series.absent_since = now
            elif now - series.absent_since > _KEPT_S:
                del self._series[key]
        gone = sorted(
            (series.absent_since, key) for key, series in self._series.items() if series.absent_since is not None
        )
        for _, key in gone[:-_MOST_GONE]:
            del self._series[key]
        known = {key[:2] for key in self._series}
        for retried in tuple(self._retries):
            if retried[:2] not in known and retried[:2] not in present:
                del self._retries[retried]

    # What a scrape gets

    def _requests(self) -> Metric:
        text = "Requests to models that have ended, by the class of their status; 499: the client left before the end."
        family = CounterMetricFamily("gpuward_gateway_requests", text, labels=(*_LABELS, "status"))
        for key, series in tuple(self._series.items()):
            for status, count in tuple(series.requests.items()):
                family.add_metric((*key, status), count)
        return family

    def _tokens(self) -> Metric:
        text = "Tokens of requests, estimated where an engine tells none; those of prompts include cached ones."
        family = CounterMetricFamily("gpuward_gateway_tokens", text, labels=(*_LABELS, "kind"))
        for key, series in tuple(self._series.items()):
            for kind in ("prompt", "cached", "completion"):
                if count := getattr(series, kind):
                    family.add_metric((*key, kind), count)
        return family

    def _seconds(self) -> Metric:
        text = "From the arrival of requests to models to their ends."
        return self._histogram("gpuward_gateway_request_seconds", text, lambda series: series.seconds)

    def _first_token(self) -> Metric:
        text = "From the arrival of requests for streams to the first piece of their answers."
        return self._histogram("gpuward_gateway_first_token_seconds", text, lambda series: series.first_token)

    def _each_token(self) -> Metric:
        text = "Time for each token of a stream after its first one, as the mean of the stream."
        return self._histogram("gpuward_gateway_output_token_seconds", text, lambda series: series.each_token)

    def _histogram(self, name: str, text: str, of: Callable[[Series], Spread]) -> Metric:
        family = HistogramMetricFamily(name, text, labels=_LABELS)
        for key, series in tuple(self._series.items()):
            spread = of(series)
            if any(spread.counts):
                family.add_metric(key, spread.buckets(), spread.total)
        return family

    def _all_retries(self) -> Metric:
        text = "Requests that a replica did not take, so that they went on to another one or waited, by what happened."
        labels = ("deployment", "revision", "reason")
        family = CounterMetricFamily("gpuward_gateway_retries", text, labels=labels)
        for key, count in tuple(self._retries.items()):
            family.add_metric(key, count)
        return family

    def _all_in_flight(self) -> Metric:
        text = "Requests that this gateway has at replicas now."
        family = GaugeMetricFamily("gpuward_gateway_requests_in_flight", text, labels=("deployment",))
        for deployment, count in self.in_flight().items():
            family.add_metric((deployment,), count)
        return family


class _Family(Collector):
    """One family, made at each scrape."""

    def __init__(self, make: Callable[[], Metric], labels: tuple[str, ...]) -> None:
        self._make = make
        self._labelnames = labels

    def describe(self) -> Iterator[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        yield self._make()


def count_tokens(series: Series, counts: Counts, *, streamed: bool, ended_s: float) -> None:
    """Adds the tokens of a request and, for a stream, their times. `ended_s`: seconds from its arrival to its end."""
    series.prompt += counts.prompt_tokens
    series.cached += counts.cached_tokens
    series.completion += counts.completion_tokens
    if streamed and counts.first_tokens:
        series.first_token.observe(counts.first_token_s)
        if counts.completion_tokens > 1:
            series.each_token.observe((ended_s - counts.first_token_s) / (counts.completion_tokens - 1))
