"""Prometheus' text format for many series: what the series of one GPU have in common is written once."""

from collections.abc import Iterable
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.utils import floatToGoString

_ESCAPED_TEXT: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})
_ESCAPED: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_COUNTER: Final = "counter"
_INFO: Final = "info"


def exposition(families: Iterable[Metric]) -> bytes:
    """The families as `prometheus_client.generate_latest` writes gauges, counters and infos.

    Raises:
        ValueError: a family is of another type.
    """
    lines: list[str] = []
    known: dict[tuple[str, ...], str] = {}
    for family in families:
        name, kind = family.name, family.type
        if kind == _COUNTER:
            name += "_total"
        elif kind == _INFO:
            name, kind = f"{name}_info", "gauge"
        elif kind != "gauge":
            raise ValueError(f"{name}: a {kind} cannot be written here")
        lines.append(f"# HELP {name} {family.documentation.translate(_ESCAPED_TEXT)}\n# TYPE {name} {kind}\n")
        for sample in family.samples:
            key = (*sample.labels, *sample.labels.values())
            labels = known.get(key)
            if labels is None:
                labels = known[key] = _labels(sample.labels)
            lines.append(f"{sample.name}{labels} {floatToGoString(sample.value)}\n")  # type: ignore[no-untyped-call]
    return "".join(lines).encode()


def _labels(labels: dict[str, str]) -> str:
    written = ",".join(f'{name}="{str(value).translate(_ESCAPED)}"' for name, value in sorted(labels.items()))
    return f"{{{written}}}" if written else ""
