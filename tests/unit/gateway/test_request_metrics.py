"""Metrics of requests: what is counted, in which buckets, and that strangers make no series."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from controller.live.key_use import Counts
from gateway.queueing.queue_metrics import QueueMetrics
from gateway.reporting.request_metrics import RequestMetrics, count_tokens

CHAT = ("chat", "3", "/v1/chat/completions")
ORDER = ("deployment", "revision", "endpoint", "status", "kind", "reason", "le")


def scraped(registry: CollectorRegistry) -> dict[tuple[str, tuple[str, ...]], float]:
    """Each sample's value by its name and the values of its labels."""
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sample.labels[name] for name in ORDER if name in sample.labels)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_requests_are_counted_by_class_and_their_times_in_seconds() -> None:
    registry = CollectorRegistry()
    metrics = RequestMetrics(registry, lambda: {"chat": 4})
    for status, seconds in ((200, 0.02), (201, 0.2), (404, 0.001), (503, 700.0), (499, 3.0)):
        metrics.ended(CHAT, status, seconds)
    metrics.retried("chat", "3", "engine_busy")
    found = scraped(registry)
    counts = {labels[-1]: value for (name, labels), value in found.items() if name == "gpuward_gateway_requests_total"}
    assert counts == {"2xx": 2, "4xx": 1, "5xx": 1, "499": 1}
    seconds = {labels[-1]: v for (n, labels), v in found.items() if n == "gpuward_gateway_request_seconds_bucket"}
    assert (seconds["0.01"], seconds["0.025"], seconds["0.25"], seconds["600.0"], seconds["+Inf"]) == (1, 2, 3, 4, 5)
    assert found["gpuward_gateway_request_seconds_sum", CHAT] == pytest.approx(703.221)
    assert found["gpuward_gateway_requests_in_flight", ("chat",)] == 4
    assert found["gpuward_gateway_retries_total", ("chat", "3", "engine_busy")] == 1


def test_tokens_and_the_times_of_streams() -> None:
    registry = CollectorRegistry()
    metrics = RequestMetrics(registry)
    counts = Counts(1, 0, 100, 40, 11, 0, 3.0, 1, 1.0)
    count_tokens(metrics.ended(CHAT, 200, 3.0), counts, streamed=True, ended_s=3.0)
    count_tokens(metrics.ended(CHAT, 200, 9.0), counts, streamed=False, ended_s=9.0)
    found = scraped(registry)
    tokens = {labels[-1]: value for (name, labels), value in found.items() if name == "gpuward_gateway_tokens_total"}
    assert tokens == {"prompt": 200, "cached": 80, "completion": 22}
    assert found["gpuward_gateway_first_token_seconds_count", CHAT] == 1
    assert found["gpuward_gateway_first_token_seconds_sum", CHAT] == 1.0
    assert found["gpuward_gateway_output_token_seconds_sum", CHAT] == pytest.approx(0.2)


def test_series_of_what_is_gone_end_after_an_hour() -> None:
    registry = CollectorRegistry()
    metrics = RequestMetrics(registry)
    for deployment, revision in (("chat", "1"), ("chat", "2"), ("chat", ""), ("old", "1"), ("", "")):
        metrics.ended((deployment, revision, "/v1/completions"), 200, 1.0)
        metrics.retried(deployment, revision, "not_connected")
    present = {("chat", "2"), ("chat", "")}

    def left() -> set[tuple[str, ...]]:
        return {labels[:2] for name, labels in scraped(registry) if name == "gpuward_gateway_requests_total"}

    metrics.keep(present, 0.0)
    metrics.keep(present | {("chat", "1")}, 3000.0)
    metrics.keep(present, 3601.0)
    assert left() == {("chat", "1"), ("chat", "2"), ("chat", ""), ("", "")}, "the one that was back in between stays"
    metrics.keep(present, 7202.0)
    assert left() == {("chat", "2"), ("chat", ""), ("", "")}
    retried = {labels[:2] for name, labels in scraped(registry) if name == "gpuward_gateway_retries_total"}
    assert retried == {("chat", "2"), ("chat", ""), ("", "")}


def test_deployments_that_come_and_go_leave_no_more_than_some_series() -> None:
    """Within the hour, too: the newest of what is gone stay, and what is there always does."""
    registry = CollectorRegistry()
    requests, queues = RequestMetrics(registry), QueueMetrics(registry)
    for n in range(1_000):
        name = f"job-{n:04}"
        for deployment in ("chat", "", name):
            requests.ended((deployment, "1", "/v1/completions"), 200, 1.0)
            requests.retried(deployment, "1", "not_connected")
            queues.waited(deployment, 1.0)
            queues.refused(deployment, "queue_full")
        requests.keep({("chat", "1"), (name, "1")}, float(n))
        queues.keep({"chat", name}, float(n))
    requests.keep({("chat", "1")}, 1000.0)
    queues.keep({"chat"}, 1000.0)
    found = scraped(registry)
    for family in (
        "gateway_requests_total",
        "gateway_retries_total",
        "gateway_refusals_total",
        "gateway_waited_seconds_sum",
    ):
        names = {labels[0] for name, labels in found if name == f"gpuward_{family}"}
        jobs = sorted(names - {"chat", ""})
        assert names >= {"chat", ""}
        assert len(jobs) == 100
        assert jobs[0] == "job-0900", "the oldest went"
