"""The formats of `-o`: tables for people; names, JSON, YAML and templates of the API's objects for programs."""

import json
import os
import shutil
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import typer

from cli.objects.kind import Kind
from cli.printing.table import Table, filled, table_lines
from cli.text.formatting import printable
from cli.transport.paths import Json
from schemas.printing import block, safe_json

if TYPE_CHECKING:  # slow to import, and few verbs need them
    from cli.printing.jsonpath import Template


class Format(StrEnum):
    """An output format."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"

    @property
    def for_programs(self) -> bool:
        """True where the objects of the API are printed unchanged."""
        return self in (Format.JSON, Format.YAML)


def print_table(table: Table, *, empty: str | None) -> None:
    """Prints a table as wide as the terminal; without rows prints `empty` to stderr, or the titles if that is None."""
    if not table.rows and empty is not None:
        print(empty, file=sys.stderr)
        return
    width = terminal_width()
    print("\n".join(table_lines(table, width, colours=width is not None and takes_colours(), stacks=True)))


def print_lines(text: str) -> None:
    """Prints lines of text, which a terminal gets broken between words."""
    width = terminal_width()
    for line in block(text).split("\n"):
        print("\n".join([line] if width is None else filled(line, width, len(line) - len(line.lstrip()) + 2)))


def terminal_width() -> int | None:
    """The columns of the terminal that stdout is; None: it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_data(data: Any, output: Format, *, in_a_row: bool = False) -> None:
    """Prints an object for programs. `in_a_row`: others follow, so JSON takes a line and YAML a document each."""
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


_JSONPATH: Final = "jsonpath"
_COMPLETIONS: Final = (*Format, "name", f"{_JSONPATH}=")


class Output(Protocol):
    """A way to print objects: a `Format`, `Names` or `Picked`."""

    @property
    def for_programs(self) -> bool:
        """True where nothing is printed that is for people only."""


class Names:
    """A name a line, as `deployment/chat`, which verbs take as an argument."""

    for_programs = True

    def write(self, kind: Kind, raws: Sequence[Json]) -> None:
        for raw in raws:
            print(f"{kind.singular.replace(' ', '-')}/{printable(str(raw.get('id', raw.get('name'))))}")


class Picked:
    """The values that a template picks from the JSON of `-o json`."""

    for_programs = True

    def __init__(self, template: "Template") -> None:
        self._template = template

    def write(self, data: Json) -> None:
        """Prints the values and a newline; a template without values gets a message on stderr."""
        text, matched = self._template.render(data)
        if text:
            print(text, end="" if text.endswith("\n") else "\n")
        if not matched and data.get("items") != []:
            template = printable(self._template.text)
            print(f"gpuward: nothing matches {template}; -o json shows the fields that there are", file=sys.stderr)


def parse_output(text: Any) -> Output:
    if isinstance(text, Format):
        return text
    if text in tuple(Format):
        return Format(text)
    if text == "name":
        return Names()
    word, equals, template = str(text).partition("=")
    if word != _JSONPATH:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(Format)}, name and jsonpath=TEMPLATE")
    if not equals:
        raise typer.BadParameter("write a template, such as -o jsonpath='{.items[*].name}'")
    from cli.printing.jsonpath import Template  # noqa: PLC0415 - few verbs use one

    try:
        return Picked(Template(template))
    except ValueError as error:
        raise typer.BadParameter(f"jsonpath: {error}") from error


ListOutputOption = Annotated[
    Output,
    typer.Option(
        "--output",
        "-o",
        parser=parse_output,
        autocompletion=lambda incomplete: [text for text in _COMPLETIONS if text.startswith(incomplete)],
        metavar="FORMAT",
        show_default="table",
        help="Output format: table, wide, json, yaml, name, or jsonpath=TEMPLATE such as "
        "jsonpath='{range .items[*]}{.name} {.status.phase}{\"\\n\"}{end}'.",
    ),
]
