"""The figures of processes as Prometheus metrics, under the names of a daemon."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from schemas.process_figures import ProcessFigures

Labels = tuple[str, ...]
# Suffix of the name, help, field, and whether it is a counter.
_FAMILIES: Final = (
    ("cpu_seconds", "CPU time of the {}.", "cpu_s", True),
    ("memory_bytes", "Resident memory of the {}.", "memory_bytes", False),
    ("open_files", "Open files and connections of the {}.", "open_files", False),
    ("open_files_limit", "Most open files that the {} may have.", "most_files", False),
    ("gc_collections", "Garbage collections of the {}, each of which stops it.", "gc_collections", True),
    ("gc_seconds", "Time in garbage collections of the {}.", "gc_s", True),
)
_DISK: Final = (
    ("disk_free_bytes", "Free bytes where the data folder of the {} is.", "disk_free_bytes", False),
    ("disk_size_bytes", "Size of the file system where the data folder of the {} is.", "disk_bytes", False),
)


class ProcessMetrics(Collector):
    """Metrics of one kind of daemon: `controller`, `gateway` or `agent`.

    `read`: the figures of each process, by the values of `labels`.
    """

    def __init__(
        self,
        daemon: str,
        read: Callable[[], Mapping[Labels, ProcessFigures]],
        *,
        labels: Sequence[str] = (),
        disk: bool = False,
    ) -> None:
        self._daemon = daemon
        self._read = read
        self._labels = tuple(labels)
        self._families = (*_FAMILIES, *(_DISK if disk else ()))

    def describe(self) -> Iterator[Metric]:
        """The families without samples."""
        return self._made({})

    def collect(self) -> Iterator[Metric]:
        """The families; unknown values are absent."""
        return self._made(self._read())

    def _made(self, figures: Mapping[Labels, ProcessFigures]) -> Iterator[Metric]:
        for suffix, text, field, counts in self._families:
            name = f"gpuward_{self._daemon}_{suffix}"
            make = CounterMetricFamily if counts else GaugeMetricFamily
            family = make(name, text.format(self._daemon), labels=self._labels)
            for labels, process in figures.items():
                if (value := getattr(process, field)) is not None:
                    family.add_metric(labels, value)
            yield family
