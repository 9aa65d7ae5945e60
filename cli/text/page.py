"""Parts of a description, and their lines at the width of a terminal: no word or name is broken. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias

from cli.objects.kind import Kind, table_of
from cli.printing.table import TEXTS, Table, filled, table_lines
from cli.text.gpu_names import GpuNames
from cli.text.sparkline import Values, chart, narrowed, sparkline

_INDENT: Final = 2  # of the parts of a section
_HANG: Final = 2  # of the other lines of a broken line
_IN_CHART: Final = 4  # columns of its indentation
_AROUND_CHART: Final = 2 + len(" 100 %")  # columns of its edges and of its threshold


class Exact(NamedTuple):
    """A line in which UUIDs of GPUs stay."""

    text: str


class Field(NamedTuple):
    """A title with its value, which stays to the right of it. `exact`: UUIDs of GPUs stay."""

    title: str
    value: str
    exact: bool = False


class Graph(NamedTuple):
    """Utilization over time. `small`: in one row."""

    values: Values
    threshold: float | None
    small: bool = False


class Inner(NamedTuple):
    """A part below the title of a section."""

    part: "Part"


Part: TypeAlias = "str | Exact | Field | Graph | Table | Inner"


@dataclass(frozen=True, slots=True)
class Page:
    """How parts are shown.

    Attributes:
        width: columns of the terminal; None: each line is as long as its text.
        wide: with the columns of `-o wide`, and UUIDs of GPUs.
    """

    width: int | None = None
    wide: bool = False
    gpus: GpuNames = field(default_factory=GpuNames)

    def table_of(self, kind: Kind, objects: Sequence[Any], now: datetime) -> Table:
        return table_of(kind, objects, now, wide=self.wide, gpus=self.gpus)

    def lines(self, parts: Iterable[Part]) -> Iterator[str]:
        for part in parts:
            yield from self._lines_of(part)

    def _lines_of(self, part: Part) -> Iterable[str]:
        match part:
            case Inner(part=inner):
                narrower = replace(self, width=None if self.width is None else max(1, self.width - _INDENT))
                return [" " * _INDENT + line for line in narrower.lines([inner])]
            case Table():
                return table_lines(self._named(part), self.width, stacks=True)
            case Graph():
                return self._graph(part)
            case Field(title=title, value=value, exact=exact):
                return self._filled(title + (value if exact else self._text(value)), len(title))
            case Exact(text=text):
                return self._filled(text, _indent_of(text) + _HANG)
            case _:
                return self._filled(self._text(part), _indent_of(part) + _HANG)

    def _filled(self, line: str, indent: int) -> list[str]:
        return [line] if self.width is None else filled(line, self.width, indent)

    def _text(self, text: str) -> str:
        return text if self.wide else self.gpus.in_text(text)

    def _named(self, table: Table) -> Table:
        if self.wide:
            return table
        rows = [
            [
                self.gpus.in_text(cell) if title in TEXTS else self.gpus.in_cell(cell)
                for title, cell in zip(table.titles, row, strict=True)
            ]
            for row in table.rows
        ]
        return table._replace(rows=rows)

    def _graph(self, graph: Graph) -> list[str]:
        room = None if self.width is None else max(1, self.width - _IN_CHART - _AROUND_CHART)
        values = narrowed(graph.values, room)
        drawn = [f"│{sparkline(values)}│"] if graph.small else chart(values, graph.threshold)
        return [" " * _IN_CHART + line for line in drawn]


PLAIN: Final = Page()


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())
