"""Printing: tables for people; JSON and YAML for programs, exactly as the API sent them."""

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from cli.formatting import printable
from schemas.printing import safe_json

if TYPE_CHECKING:  # slow to import
    from rich.console import Console
    from rich.table import Table

_PIPED_WIDTH: Final = 10_000
_GOOD: Final = frozenset({"running", "ready", "ok", "succeeded", "open"})
_BAD: Final = frozenset({"failed", "lost", "unhealthy", "unreachable", "degraded", "backoff", "quarantined"})
_COLOURED: Final = frozenset({"PHASE", "STATE", "HEALTH"})


class Format(StrEnum):
    """An output format."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"

    @property
    def for_programs(self) -> bool:
        """Whether the objects of the API are printed unchanged."""
        return self in (Format.JSON, Format.YAML)


def console(*, stderr: bool = False) -> "Console":
    """A console. If it is not a terminal, it uses no colours and breaks no lines."""
    from rich.console import Console  # noqa: PLC0415 - slow to import

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPED_WIDTH
    return Console(file=stream, width=width, highlight=False, soft_wrap=False, emoji=False, markup=False)


def build_table(titles: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> "Table":
    """A table without borders. On a narrow terminal cells wrap; nothing is cut off."""
    from rich.table import Table  # noqa: PLC0415 - slow to import
    from rich.text import Text  # noqa: PLC0415 - slow to import

    table = Table(
        box=None, pad_edge=False, header_style="bold", title=title, title_justify="left", padding=(0, 2, 0, 0)
    )
    for name in titles:
        table.add_column(name, overflow="fold")
    for row in rows:
        cells = (Text(printable(text), style=_style(name, text)) for name, text in zip(titles, row, strict=True))
        table.add_row(*cells)
    return table


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str) -> None:
    """Prints a table; if it has no rows, prints `empty` to stderr."""
    if not rows:
        print(empty, file=sys.stderr)
        return
    out = console()
    with out.capture() as captured:
        out.print(build_table(titles, rows))
    for line in captured.get().splitlines():
        print(line.rstrip())


def print_data(data: Any, output: Format, *, in_a_row: bool = False) -> None:
    """Prints an object for programs, as JSON or YAML.

    Args:
        data: as the API sent it.
        output: JSON or YAML.
        in_a_row: more objects follow, so JSON takes one line each and YAML one document each.
    """
    if output is Format.YAML:
        import yaml  # noqa: PLC0415 - not needed by most verbs

        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, explicit_start=in_a_row)
        print(text, end="", flush=True)
    else:
        print(safe_json(json.dumps(data, indent=None if in_a_row else 2, ensure_ascii=False)), flush=True)


def _style(title: str, text: str) -> str:
    if title not in _COLOURED:
        return ""
    if text in _GOOD:
        return "green"
    return "red" if text in _BAD else "yellow"
