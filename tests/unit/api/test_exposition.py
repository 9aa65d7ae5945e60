"""The text is what Prometheus' own client library writes."""

import math

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from controller.api.resources.metrics import exposition


class Given:
    def __init__(self, families: list[Metric]) -> None:
        self.families = families

    def collect(self) -> list[Metric]:
        return self.families


def test_it_writes_what_the_library_writes() -> None:
    gauge = GaugeMetricFamily("g", 'A \\ and\na "quote".', labels=["worker", "a"])
    for value in (1, 0.25, 1e21, 12345678.9, math.inf, -math.inf, math.nan):
        gauge.add_metric([f'w"{value}\\\n', "ü"], value)
    counter = CounterMetricFamily("c", "Counted.", labels=["x"])
    counter.add_metric(["1"], 3)
    bare = GaugeMetricFamily("bare", "None.", value=2)
    families = [gauge, counter, bare, InfoMetricFamily("build", "Build.", {"version": "1"}), Metric("e", "E.", "gauge")]
    registry = CollectorRegistry()
    registry.register(Given(families))  # type: ignore[arg-type]  # all that it needs of a collector
    assert exposition(families) == generate_latest(registry)


def test_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match="histogram"):
        exposition([HistogramMetricFamily("h", "H.", labels=[])])
