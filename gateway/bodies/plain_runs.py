"""Leaves long runs of plain characters out of a JSON text, such as those of an image: no parser need see them. Pure.

What stands for a run is valid within strings alone, and begins with a space, which no half of an escape or of a
character goes with. So the shorter text is JSON only where the run is within a string, and then the longer one is too.
"""

from secrets import token_hex
from typing import Final

import numpy as np

LEFT_OUT: Final = token_hex(16)  # is in each string out of which a run was left
_INSTEAD: Final = b" \\n%b" % LEFT_OUT.encode()
_WINDOW: Final = 4 * 1024  # what is left out has as many bytes at least
_LONGEST: Final = 512 * 1024
_FIRST_PLAIN: Final = 0x20


def condensed(text: bytes, start: int, end: int) -> list[bytes | memoryview]:
    """The text between two places, in pieces, without its long runs of plain ASCII."""
    if end - start < 4 * _WINDOW:
        return [memoryview(text)[start:end]]
    pieces: list[bytes | memoryview] = []
    view, kept, at = memoryview(text), start, start
    misses = 0  # in a row: the more of them, the fewer places are looked at
    while at + _WINDOW <= end:
        last = max(text.rfind(b'"', at, at + _WINDOW), text.rfind(b"\\", at, at + _WINDOW))
        if last >= 0:
            at = last + 1 + misses * _WINDOW
            misses += 1
            continue
        misses = 0
        stop = min(end, at + _LONGEST)
        for odd in (b'"', b"\\"):
            found = text.find(odd, at + _WINDOW, stop)
            stop = found if found >= 0 else stop
        if _is_plain(text, at, stop):
            pieces += view[kept:at], _INSTEAD
            kept = stop
        at = stop
    pieces.append(view[kept:end])
    return pieces


def _is_plain(text: bytes, start: int, end: int) -> bool:
    """Whether all are printable ASCII, or the one character behind it. As signed bytes, all beyond are below zero."""
    run = np.frombuffer(text, np.int8, end - start, start)
    return bool(np.minimum.reduce(run) >= _FIRST_PLAIN)
