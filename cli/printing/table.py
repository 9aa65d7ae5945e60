"""Tables for people: columns leave by rank where the terminal is narrow, and no name is broken. Pure."""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from cli.text.formatting import DASH, printable

_GAP: Final = "  "
_INDENT: Final = "    "
_WORD: Final = re.compile(r"(\s*)(\S+)")
_NARROWEST: Final = 20  # columns that a text is wrapped to at least
TEXTS: Final = frozenset({"WHY", "MESSAGE", "HELD BY"})  # columns of sentences: the only ones that wrap
_GOOD: Final = frozenset({"running", "ready", "ok", "succeeded", "open"})
_BAD: Final = frozenset({"failed", "lost", "unhealthy", "unreachable", "degraded", "backoff", "quarantined"})
_COLOURED: Final = frozenset({"PHASE", "STATE", "HEALTH"})
_BOLD, _GREEN, _RED, _YELLOW, _PLAIN = "\x1b[1m", "\x1b[32m", "\x1b[31m", "\x1b[33m", "\x1b[0m"
_JUDGED: Final = frozenset({"IDLE FOR", "STOPS IN"})
_OF_VERDICT: Final = {"busy": _GREEN, "idle": _RED, "unknown": _YELLOW}


class Table(NamedTuple):
    """Titles and cells.

    Attributes:
        leaving: titles of the columns that a narrow terminal can do without, in this order. Columns without a value in
            any row leave before them, and sentences move below their row before any other column leaves.
        verdicts: of a utilization policy, one for each row, which colour its columns about idle time.
    """

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    leaving: Sequence[str] = ()
    verdicts: Sequence[str] = ()


def table_lines(table: Table, width: int | None, *, colours: bool = False, stacks: bool = False) -> list[str]:
    """The table as lines, the titles first.

    Args:
        table: its cells may have any text.
        width: columns of the terminal; None: each row is one line.
        colours: of states; titles are bold then.
        stacks: each cell gets a line of its own where even the columns that stay are too wide.
    """
    rows = [[printable(cell) for cell in row] for row in table.rows]
    titles = list(table.titles)
    kept = list(range(len(titles)))
    below: list[int] = []
    if width is not None:
        for leaves in _steps(titles, rows, table.leaving):
            if _width_of(titles, rows, kept) <= width:
                break
            below += [column for column in kept if column in leaves and titles[column] in TEXTS]
            kept = [column for column in kept if column not in leaves]
    if stacks and width is not None and _width_of(titles, rows, kept) > width:
        return [titles[0], *(line for row in rows for line in _stacked(titles, row, [*kept, *sorted(below)], width))]
    widths = [_width_of(titles, rows, [column]) for column in kept]
    lines = [_line([titles[c] for c in kept], widths, [_BOLD if colours else ""] * len(kept))]
    for n, row in enumerate(rows):
        verdict = table.verdicts[n] if table.verdicts else ""
        styles = [_style(titles[c], row[c], verdict) if colours else "" for c in kept]
        lines.append(_line([row[c] for c in kept], widths, styles))
        for text in (row[c] for c in sorted(below) if row[c] not in ("", DASH)):
            lines += _wrapped(text, width or 0)
    return lines


def _steps(titles: Sequence[str], rows: Sequence[Sequence[str]], leaving: Sequence[str]) -> list[set[int]]:
    """The sets of columns that leave, in this order."""
    last = len(titles) - 1
    texts = {column for column, title in enumerate(titles) if title in TEXTS}
    empty = {column for column in range(1, last + 1) if all(row[column] in ("", DASH) for row in rows)}
    steps = [empty - texts, texts, *({titles.index(title)} for title in leaving if title in titles)]
    return [*steps, set()]


def _width_of(titles: Sequence[str], rows: Sequence[Sequence[str]], kept: Sequence[int]) -> int:
    widths = [max(cells(titles[column]), *(cells(row[column]) for row in rows), 0) for column in kept]
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _line(texts: Sequence[str], widths: Sequence[int], styles: Sequence[str]) -> str:
    padded = []
    for text, width, style in zip(texts, widths, styles, strict=True):
        shown = f"{style}{text}{_PLAIN}" if style and text else text
        padded.append(shown + " " * (width - cells(text)))
    return _GAP.join(padded).rstrip()


def _wrapped(text: str, width: int) -> list[str]:
    indent = len(_INDENT)
    return filled(_INDENT + text, max(_NARROWEST, width), indent, least=indent if width < _NARROWEST else 0)


def _stacked(titles: Sequence[str], row: Sequence[str], columns: Sequence[int], width: int) -> list[str]:
    lines = filled(row[0], width, len(_INDENT))
    for column in columns[1:]:
        if row[column] not in ("", DASH):
            lines += filled(f"{_INDENT}{titles[column]}: {row[column]}", width, 2 * len(_INDENT))
    return lines


def filled(line: str, width: int, indent: int, *, least: int = 0) -> list[str]:
    """The line, broken between words where it is wider than `width`; `indent`: spaces before its other lines.

    A word is never broken. Where it fits only after fewer spaces, there are fewer, but not under `least`. Spaces within
    a line stay as they are.
    """
    if cells(line) <= width:
        return [line.rstrip()]
    before = len(line) - len(line.lstrip())
    lines: list[str] = []
    for gap, word in _WORD.findall(line):
        if lines and cells(lines[-1]) + cells(gap) + cells(word) <= width:
            lines[-1] += gap + word
        else:
            wanted, room = indent if lines else before, width - cells(word)
            lines.append(" " * (wanted if room < 0 else max(least, min(wanted, room))) + word)
    return lines


def cells(text: str) -> int:
    """The number of terminal columns of a text: two for a wide character, none for a combining character."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width  # noqa: PLC0415 - for few tables

    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def _style(title: str, text: str, verdict: str) -> str:
    if title in _JUDGED:
        return _OF_VERDICT.get(verdict, "")
    if title not in _COLOURED:
        return ""
    if text in _GOOD:
        return _GREEN
    return _RED if text in _BAD else _YELLOW
