"""The state of the live `top`: a key gives the next state, and a state picks and orders rows. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from cli.top.rows import SORTED, Row

HELP: Final = "q quit, s next sort, S reverse, / filter, Esc clear, arrows PgUp PgDn Home End"
_MOST_TYPED: Final = 64
_QUIT: Final = ("q", "Q", "ctrl-c")


@dataclass(frozen=True, slots=True)
class State:
    """The settings that keys change."""

    sort: int = 0  # index of the column in `SORTED` that orders the rows
    reverse: bool = False  # against the column's own direction
    filter: str = ""  # rows must have all of its words
    typing: bool = False  # keys are appended to the filter
    first: int = 0  # index of the first row on the screen
    help: bool = False  # the line of keys is shown
    ended: bool = False


def press(state: State, key: str, *, rows: int, page: int) -> State:
    """The state after a key: a character, or a name of `cli.terminal.keys`. `page`: number of rows on the screen."""
    first = _scrolled(state.first, key, rows, page)
    if first is not None:
        return replace(state, first=first)
    if key == "escape":
        return replace(state, filter="", typing=False, first=0)
    return _typed(state, key) if state.typing else _command(state, key)


def _scrolled(first: int, key: str, rows: int, page: int) -> int | None:
    last = max(0, rows - page)
    first = min(first, last)
    to = {
        "up": first - 1, "down": first + 1, "page-up": first - page, "page-down": first + page, "home": 0, "end": last,
    }.get(key)  # fmt: skip
    return None if to is None else min(max(0, to), last)


def _typed(state: State, key: str) -> State:
    if key == "enter":
        return replace(state, typing=False)
    if key == "backspace":
        return replace(state, filter=state.filter[:-1], first=0)
    if key == "ctrl-u":
        return replace(state, filter="", first=0)
    if key == "ctrl-c":
        return replace(state, ended=True)
    if len(key) != 1:
        return state
    return replace(state, filter=(state.filter + key)[:_MOST_TYPED], first=0)


def _command(state: State, key: str) -> State:
    if key in _QUIT:
        return replace(state, ended=True)
    if key == "s":
        return replace(state, sort=(state.sort + 1) % len(SORTED), reverse=False, first=0)
    if key == "S":
        return replace(state, reverse=not state.reverse, first=0)
    if key == "/":
        return replace(state, typing=True)
    return replace(state, help=not state.help) if key == "?" else state


def picked(state: State, rows: Sequence[Row]) -> list[Row]:
    """The rows with all words of the filter, in order. Unknown values are last in both directions."""
    words = state.filter.lower().split()
    fitting = [row for row in rows if all(word in row.words for word in words)]
    known = [row for row in fitting if row.orders[state.sort] is not None]
    unknown = [row for row in fitting if row.orders[state.sort] is None]
    return sorted(known, key=lambda row: row.orders[state.sort] or 0, reverse=falls(state)) + unknown


def falls(state: State) -> bool:
    return SORTED[state.sort].falling != state.reverse
