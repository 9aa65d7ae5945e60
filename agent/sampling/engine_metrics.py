"""What an engine's own metrics say of its requests, its queue, its cache and its tokens. Pure.

A page is passed over once, and costs no more than in line with its length, whatever it holds.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from schemas.wire import StartOrder

MOST_LINES: Final = 2**16
MOST_SAMPLE_CHARS: Final = 2**14
_MOST_REQUESTS: Final = 2**31 - 1  # no engine has more at once
_NAME: Final = re.compile("[A-Za-z_:][A-Za-z0-9_:]*")
_QUOTED: Final = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_LABEL: Final = rf"[ \t]*(?:[A-Za-z_][A-Za-z0-9_]*|{_QUOTED})[ \t]*=[ \t]*{_QUOTED}[ \t]*"
_LABELS: Final = rf"[ \t]*\{{(?:{_LABEL}(?:,{_LABEL})*(?:,[ \t]*)?|[ \t]*)\}}[ \t]*"
_BEHIND: Final = r"(?:[ \t]+-?[0-9.]+)?(?:[ \t]+\#.*)?[ \t\r]*"  # a time, an example
# What follows a name. No two ways lead through a text, so that one that does not match costs no more.
_SAMPLE: Final = re.compile(rf"(?:{_LABELS}|[ \t]+)([0-9A-Za-z.+-]+){_BEHIND}")

Samples = Mapping[str, Sequence[float]]  # by name, over all labels


@dataclass(frozen=True, slots=True)
class Pressure:
    """What an engine says of its own queue and of the share of its KV cache in use, 0 to 1; None: unknown."""

    queued: int | None = None
    kv_use: float | None = None


class ImpossibleGaugeError(ValueError):
    """A gauge has a value that no engine can have."""


def names_of(order: StartOrder | None) -> frozenset[str]:
    """All that is read of the engine's metrics."""
    if order is None:
        return frozenset()
    return frozenset((*order.request_gauges, *order.queue_gauges, *order.cache_gauges, *order.progress_counters))


def read_samples(page: str, names: Collection[str]) -> Samples:
    """The values of these names in Prometheus' text format.

    Raises:
        ValueError: one of their lines is invalid or too long, or there are too many lines.
    """
    wanted, at = tuple(names), 0
    found: dict[str, list[float]] = {}
    for _ in range(MOST_LINES):
        end = page.find("\n", at)
        end = len(page) if end < 0 else end
        if page.startswith(wanted, at):
            name = _NAME.match(page, at, end)
            if name is not None and name[0] in names:
                found.setdefault(name[0], []).append(_value(page, name.end(), end))
        at = end + 1
        if at >= len(page):
            return found
    raise ValueError(f"the page must have at most {MOST_LINES} lines")


def _value(page: str, at: int, end: int) -> float:
    """The value of the sample whose name ends at `at`."""
    if end - at > MOST_SAMPLE_CHARS:
        raise ValueError(f"a sample must have at most {MOST_SAMPLE_CHARS} characters")
    sample = _SAMPLE.fullmatch(page, at, end)
    if sample is None:
        raise ValueError("a sample must be a name, labels and a number")
    return float(sample[1])


def sum_gauges(samples: Samples, gauges: Collection[str]) -> int:
    """The sum of these gauges over all labels, rounded up; 0 if there are none of them.

    Raises:
        ImpossibleGaugeError: one of them is negative, not finite, or larger than any engine's.
    """
    values = _of(samples, gauges)
    if not all(0 <= value <= _MOST_REQUESTS for value in values) or sum(values) > _MOST_REQUESTS:  # NaN is in no range
        raise ImpossibleGaugeError(f"a request gauge must be 0 to {_MOST_REQUESTS}")
    return math.ceil(sum(values))


def read_pressure(samples: Samples, order: StartOrder | None) -> Pressure:
    """The sum of the order's queue gauges and the mean of its cache gauges, over all labels.

    Raises:
        ImpossibleGaugeError: one of them has a value that no engine can have.
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
    """The sum of the order's counters of tokens over all labels; None: it has none.

    Raises:
        ImpossibleGaugeError: one of them is negative or not finite.
    """
    values = [] if order is None else _of(samples, order.progress_counters)
    if not all(0 <= value < math.inf for value in values):
        raise ImpossibleGaugeError("a counter must be 0 or more")
    return sum(values) if values else None


def _of(samples: Samples, names: Collection[str]) -> list[float]:
    return [value for name in names for value in samples.get(name, ())]
