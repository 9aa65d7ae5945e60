"""Requests, queue, cache use and tokens in an engine's metrics. Pure.

A page is scanned once, and only samples of known names are parsed, within a bound.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from schemas.wire import StartOrder

MOST_LINES: Final = 2**16
MOST_CHARS: Final = 2**17  # of parsed samples; half a microsecond each
_MOST_REQUESTS: Final = 2**31 - 1  # no engine has more at once

Samples = Mapping[str, Sequence[float]]  # by name, over all labels


@dataclass(frozen=True, slots=True)
class Pressure:
    """An engine's queue length, and the used share of its KV cache, 0 to 1. None: unknown."""

    queued: int | None = None
    kv_use: float | None = None


class ImpossibleGaugeError(ValueError):
    """A gauge has a value that no engine can have."""


def names_of(order: StartOrder | None) -> frozenset[str]:
    """Names of the engine's metrics that are read."""
    if order is None:
        return frozenset()
    return frozenset((*order.request_gauges, *order.queue_gauges, *order.cache_gauges, *order.progress_counters))


def read_samples(page: str, names: Collection[str]) -> Samples:
    """The values of these names in Prometheus' text format. Raises ValueError, also beyond the bounds."""
    lines = "\n".join(_lines_of(page, tuple(names)))
    if len(lines) > MOST_CHARS:
        raise ValueError(f"the samples must have at most {MOST_CHARS} characters")
    values: dict[str, list[float]] = {}
    try:
        for family in text_string_to_metric_families(f"{lines}\n"):
            for sample in family.samples:
                if sample.name in names:
                    values.setdefault(sample.name, []).append(sample.value)
    except IndexError as error:  # the parser raises it for a truncated line
        raise ValueError("a sample must be a name, labels and a number") from error
    return values


def _lines_of(page: str, names: tuple[str, ...]) -> Iterator[str]:
    """The lines that start with one of these."""
    at = 0
    for _ in range(MOST_LINES):
        end = page.find("\n", at)
        end = len(page) if end < 0 else end
        if page.startswith(names, at):
            yield page[at:end]
        at = end + 1
        if at >= len(page):
            return
    raise ValueError(f"the page must have at most {MOST_LINES} lines")


def sum_gauges(samples: Samples, gauges: Collection[str]) -> int:
    """The sum over all labels, rounded up; 0 without samples. Raises ImpossibleGaugeError."""
    values = _of(samples, gauges)
    if not all(0 <= value <= _MOST_REQUESTS for value in values) or sum(values) > _MOST_REQUESTS:  # NaN is in no range
        raise ImpossibleGaugeError(f"a request gauge must be 0 to {_MOST_REQUESTS}")
    return math.ceil(sum(values))


def read_pressure(samples: Samples, order: StartOrder | None) -> Pressure:
    """The sum of the order's queue gauges and the mean of its cache gauges, over all labels.

    Raises ImpossibleGaugeError.
    """
    if order is None:
        return Pressure()
    caches = _of(samples, order.cache_gauges)
    if not all(0 <= value <= 1 for value in caches):
        raise ImpossibleGaugeError("a gauge of a cache must be 0 to 1")
    return Pressure(
        queued=sum_gauges(samples, order.queue_gauges) if _of(samples, order.queue_gauges) else None,
        kv_use=sum(caches) / len(caches) if caches else None,
    )


def read_tokens(samples: Samples, order: StartOrder | None) -> float | None:
    """The sum of the order's counters of tokens over all labels; None without samples. Raises ImpossibleGaugeError."""
    values = [] if order is None else _of(samples, order.progress_counters)
    if not all(0 <= value < math.inf for value in values):
        raise ImpossibleGaugeError("a counter must be 0 or more")
    return sum(values) if values else None


def _of(samples: Samples, names: Collection[str]) -> list[float]:
    return [value for name in names for value in samples.get(name, ())]
