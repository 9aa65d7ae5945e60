"""Percentages over time as block characters. Unknown values are gaps. Pure."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_FULL: Final = 100.0
_GAP: Final = " "
_LINE: Final = "┄"
_ROWS: Final = 4

Values = Sequence[float | None]


def sparkline(values: Values, width: int | None = None) -> str:
    """A block for each value in percent, oldest first. Values that share a character of `width` show their maximum."""
    return "".join(_GAP if value is None else _block(value) for value in narrowed(values, width))


def chart(values: Values, threshold: float | None) -> list[str]:
    """Several rows, the highest first, with a line at the threshold and its value next to it."""
    line = None if threshold is None else min(_ROWS - 1, int(threshold * _ROWS / _FULL))
    lines = []
    for row in reversed(range(_ROWS)):
        empty = _LINE if row == line else _GAP
        cells = "".join(_cell(value, row, empty) for value in values)
        lines.append(f"│{cells}│" + (f" {threshold:g} %" if row == line else ""))
    return lines


def _cell(value: float | None, row: int, empty: str) -> str:
    """The part of a value's column in one row. Zero is a thin block, so that it differs from a gap."""
    if value is None:
        return _GAP
    eighths = max(1, round(min(value, _FULL) / _FULL * _ROWS * len(_BLOCKS))) - row * len(_BLOCKS)
    return empty if eighths <= 0 else _BLOCKS[min(eighths, len(_BLOCKS)) - 1]


def _block(value: float) -> str:
    return _BLOCKS[min(int(max(value, 0.0) / _FULL * len(_BLOCKS)), len(_BLOCKS) - 1)]


def narrowed(values: Values, width: int | None) -> Values:
    """At most `width` values, each the maximum of its share; None: all."""
    if width is None or len(values) <= width:
        return values
    edges = [round(n * len(values) / width) for n in range(width + 1)]
    shares = (values[a:b] for a, b in pairwise(edges))
    return [max((v for v in share if v is not None), default=None) for share in shares]
