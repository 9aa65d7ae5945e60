"""Printing: tables for people; JSON and YAML for programs, exactly as the API sent them."""

import json
import os
import shutil
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from cli.printing.table import Table, table_lines
from schemas.printing import safe_json

if TYPE_CHECKING:  # slow to import
    from rich.console import Console

_PIPED_WIDTH: Final = 10_000


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


def print_table(table: Table, *, empty: str) -> None:
    """Prints a table as wide as the terminal; if it has no rows, prints `empty` to stderr."""
    if not table.rows:
        print(empty, file=sys.stderr)
        return
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else None
    print("\n".join(table_lines(table, width, colours=terminal and takes_colours())))


def print_data(data: Any, output: Format, *, in_a_row: bool = False) -> None:
    """Prints an object for programs, as JSON or YAML.

    Args:
        data: as the API sent it.
        output: JSON or YAML.
        in_a_row: more objects follow, so JSON takes one line each and YAML one document each.
    """
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    if output is Format.YAML:
        import yaml  # noqa: PLC0415 - not needed by most verbs

        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=unicode, explicit_start=in_a_row)
        print(text, end="", flush=True)
    else:
        print(safe_json(json.dumps(data, indent=None if in_a_row else 2, ensure_ascii=not unicode)), flush=True)


def takes_colours() -> bool:
    """By the conventions of terminals: see no-color.org."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
