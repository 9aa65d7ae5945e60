"""The names of metrics and their labels, and what a query in PromQL names that does not exist."""

import re
from collections.abc import Mapping
from typing import Final

from support.pages import DOCS

SERVERS: Final = {"instance", "le"}  # labels that Prometheus itself adds, and those of buckets
_METRIC = re.compile(r"\| `(gpuward_\w+)` \| (\w+) \| [^|]* \| ([^|]*) \|")
_BY = re.compile(r"\bby \(([^)]*)\)")
_SELECTED = re.compile(r"\{([^}]*)\}")


def metrics() -> dict[str, set[str]]:
    """Labels by name, as docs/metrics.md lists them, which a test holds to what is exported."""
    found: dict[str, set[str]] = {}
    for line in (DOCS / "metrics.md").read_text(encoding="utf-8").splitlines():
        if row := _METRIC.match(line):
            labels = set(re.findall(r"`(\w+)`", row[3]))
            names = [row[1] + part for part in ("_bucket", "_sum", "_count")] if row[2] == "histogram" else [row[1]]
            found |= dict.fromkeys(names, labels)
    return found


def kept_labels(expression: str) -> set[str]:
    """The labels by which an expression sums up."""
    return {name.strip() for by in _BY.findall(expression) for name in by.split(",")}


def unknown(expression: str, series: Mapping[str, set[str]]) -> set[str]:
    """What an expression names that does not exist."""
    names = set(re.findall(r"\bgpuward[\w:]+", re.sub(r'"[^"]*"', "", expression)))
    known = set.union(SERVERS, *(series.get(name, set()) for name in names))
    labels = kept_labels(expression)
    labels |= {name for inner in _SELECTED.findall(expression) for name in re.findall(r"(\w+)\s*[=!]", inner)}
    return (names - set(series)) | (labels - known)
