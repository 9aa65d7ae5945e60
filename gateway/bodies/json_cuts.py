"""Where a JSON text can be cut, and which brackets are open there. Pure."""

from typing import Final, NamedTuple

import numpy as np

MOST_DEPTH: Final = 200  # of a body: engines' parsers fail at about a thousand, which would count as their fault
ESCAPES: Final = (b"\\\\", b'\\"')  # in this order: what is left of quotes begins or ends a string
_PLACES: Final = (b",", b"[", b"]", b"{", b"}")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_OPENS_BITS: Final = (0b110, 0b010)  # of a bracket: which bits say that it opens, and what they are then


class Cut(NamedTuple):
    """A place outside of strings.

    Attributes:
        at: the next piece begins here.
        opens: it is behind a bracket that opens. Else a value ends before it.
    """

    at: int
    opens: bool


def depth_of(text: bytes) -> int:
    """The most brackets that are open at once in a JSON text."""
    for escape in ESCAPES:
        text = text.replace(escape, b"")
    return note_brackets(bytearray(), text, in_string=False)


def last_cut(plain: bytes, most_quotes: int, *, ends_in_string: bool) -> Cut | None:
    """The last cut, before a comma or behind a bracket. None: there is none, or more quotes are behind it.

    Args:
        plain: a text whose quotes all begin or end a string.
        most_quotes: behind the cut.
        ends_in_string: whether the end of the text is within a string.
    """
    end, quotes = len(plain), 0
    if ends_in_string:
        end, quotes = plain.rfind(b'"'), 1
    while quotes <= most_quotes and end >= 0:
        begins = plain.rfind(b'"', 0, end) + 1
        at = max(plain.rfind(place, begins, end) for place in _PLACES)
        if at >= 0:
            return Cut(at + (plain[at : at + 1] != b","), plain[at] in b"[{")
        end = plain.rfind(b'"', 0, begins - 1) if begins else -1
        quotes += 2
    return None


def note_brackets(opened: bytearray, plain: bytes, *, in_string: bool) -> int:
    """Opens and closes the brackets of a text. Which one closes which is not looked at.

    Args:
        opened: those that are open, which it changes.
        plain: a text whose quotes all begin or end a string.
        in_string: whether its begin is within a string.

    Returns:
        The most that were open at once.

    Raises:
        ValueError: a bracket closes that was not opened.
    """
    texts = plain.split(b'"')[in_string::2]
    text = (texts[0] if len(texts) == 1 else b"".join(texts)).translate(None, _NO_BRACKETS)
    before = len(opened)
    if not text:
        return before
    brackets = np.frombuffer(text, np.uint8)
    bits, those = _OPENS_BITS
    opens = (brackets & bits) == those
    depths = np.cumsum(np.where(opens, np.int32(1), np.int32(-1)))
    closed = max(0, -int(depths.min()))
    if closed > len(opened):
        raise ValueError("a bracket closes that was not opened")
    if closed:
        del opened[-closed:]
    lowest_behind = np.minimum.accumulate(depths[::-1])[::-1]
    opened += brackets[opens & (depths == lowest_behind)].tobytes()
    return before + max(0, int(depths.max()))
