"""Metrics of several processes in one exposition: each sample has the label `process`, so that a restart is seen."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

LABEL = "process"


class _Given(Collector):
    """Metrics that were collected elsewhere."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = tuple(metrics)

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)


def joined(expositions: Mapping[str, str]) -> bytes:
    """One exposition of all, by the name of the process. Counters are not added up: one would fall with its process."""
    families: dict[str, Metric] = {}
    for process, text in expositions.items():
        for family in text_string_to_metric_families(text):
            joint = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                joint.samples.append(sample._replace(labels={**sample.labels, LABEL: process}))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Given(families.values()))
    return generate_latest(registry)
