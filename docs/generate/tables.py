"""What every generator of a reference page shares: Markdown tables, durations, links to headings."""

import re
from collections.abc import Iterable, Sequence

_UNITS = ((86_400, "d"), (3600, "h"), (60, "m"))


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table. No cell may hold a `|`: hosts of Markdown disagree on how it is escaped."""
    lines = [_line(titles), "|" + "---|" * len(titles), *(_line(row) for row in rows)]
    return [*lines, ""]


def _line(cells: Sequence[str]) -> str:
    for cell in cells:
        if "|" in cell or "\n" in cell:
            raise ValueError(f"a cell holds a line break or '|': {cell!r}")
    return "| " + " | ".join(cells) + " |"


def one_line(text: str) -> str:
    """A text without line breaks, such as a docstring's paragraph."""
    return re.sub(r"\s+", " ", text).strip()


def sentence(text: str) -> str:
    """A text that begins with a capital, unless it begins with code, and ends with a full stop."""
    text = one_line(text)
    if not text:
        return ""
    end = "" if text.endswith((".", "!", "?")) else "."
    return text[0].upper() + text[1:] + end


def duration(seconds: float) -> str:
    """Seconds as manifests write them."""
    for unit_s, unit in _UNITS:
        if seconds >= unit_s and seconds % unit_s == 0:
            return f"{seconds / unit_s:g}{unit}"
    return f"{seconds:g}s"


def code(text: object) -> str:
    """The text as code."""
    return f"`{text}`"


def words(options: Sequence[str]) -> str:
    """`a`, `b` or `c`."""
    shown = [code(option) for option in options]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"
