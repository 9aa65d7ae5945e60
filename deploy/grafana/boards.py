"""Writes the boards for Grafana from boards.yaml: `python deploy/grafana/boards.py`, which `make reference` runs."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict

FOLDER: Final = Path(__file__).parent
_WIDTH: Final = 24  # columns of Grafana's grid
_HEIGHTS: Final = {"lines": 8, "number": 4}  # rows of it
_SCHEMA: Final = 39  # of Grafana 11; newer versions migrate it
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_COLOURS: Final = {
    "never": [(None, "green")],
    "above zero": [(None, "green"), (1, "red")],
    "zero": [(None, "red"), (1, "green")],
}
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "lines": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "number": {"colorMode": "value", "graphMode": "area", "reduceOptions": {"calcs": ["lastNotNull"]}},
}


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Panel(_Part):
    """A panel."""

    title: str
    kind: Literal["lines", "number"] = "lines"
    unit: str = "short"  # Grafana's name of the unit, such as `s`, `bytes`, `percentunit`
    about: str = ""  # help text
    stacked: bool = False
    most: float | None = None  # top of the axis, if known
    bad: Literal["never", "above zero", "zero"] = "never"  # the values that are red
    query: str = ""  # PromQL of the only series
    queries: dict[str, str] = {}  # PromQL by legend; `{{label}}` in a legend is the label's value

    @property
    def by_legend(self) -> dict[str, str]:
        """All queries; Grafana chooses the legend of a single query."""
        return self.queries or {"__auto": self.query}


class Row(_Part):
    """Panels side by side, of equal width."""

    title: str
    panels: tuple[Panel, ...]


class Board(_Part):
    """A board. `variables`: labels that its reader may choose, with a metric that has them."""

    uid: str
    title: str
    about: str
    variables: dict[str, str] = {}
    rows: tuple[Row, ...]

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.uid}.json"

    @property
    def json_text(self) -> str:
        return json.dumps(_board(self), indent=1, ensure_ascii=False) + "\n"


def boards() -> list[Board]:
    return [Board.model_validate(raw) for raw in yaml.safe_load((FOLDER / "boards.yaml").read_text(encoding="utf-8"))]


def _board(board: Board) -> dict[str, Any]:
    return {
        "uid": board.uid,
        "title": board.title,
        "description": board.about,
        "tags": ["gpuward"],
        "schemaVersion": _SCHEMA,
        "editable": True,
        "graphTooltip": 1,  # one cross hair in all panels
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "links": [
            {"type": "dashboards", "tags": ["gpuward"], "asDropdown": True, "title": "Gpuward", "includeVars": True}
        ],
        "templating": {"list": [_source(), *(_variable(label, metric) for label, metric in board.variables.items())]},
        "panels": list(_panels(board.rows)),
    }


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variable(label: str, metric: str) -> dict[str, Any]:
    return {
        "name": label,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": f"label_values({metric}, {label})", "refId": label},
        "refresh": 2,  # whenever the time changes
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
    }


def _panels(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    top, id_ = 0, 0
    for row in rows:
        id_ += 1
        place = {"x": 0, "y": top, "w": _WIDTH, "h": 1}
        yield {"id": id_, "type": "row", "title": row.title, "collapsed": False, "panels": [], "gridPos": place}
        top += 1
        width = _WIDTH // len(row.panels)
        for at, panel in enumerate(row.panels):
            id_ += 1
            place = {"x": at * width, "y": top, "w": width, "h": _HEIGHTS[panel.kind]}
            yield {"id": id_, "gridPos": place, **_panel(panel)}
        top += max(_HEIGHTS[panel.kind] for panel in row.panels)


def _panel(panel: Panel) -> dict[str, Any]:
    steps = [{"value": value, "color": colour} for value, colour in _COLOURS[panel.bad]]
    defaults: dict[str, Any] = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.kind == "lines":
        stacking = {"mode": "normal" if panel.stacked else "none"}
        defaults |= {"custom": {"fillOpacity": 20 if panel.stacked else 0, "stacking": stacking}, "min": 0}
    if panel.most is not None:
        defaults["max"] = panel.most
    return {
        "type": "timeseries" if panel.kind == "lines" else "stat",
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _OPTIONS[panel.kind],
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
            for at, (legend, query) in enumerate(panel.by_legend.items())
        ],
    }


def main() -> None:
    for board in boards():
        board.path.write_text(board.json_text, encoding="utf-8")


if __name__ == "__main__":
    main()
