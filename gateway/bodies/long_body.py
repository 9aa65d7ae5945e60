"""Reads a long JSON body in short steps: what its top level says, without the values below it. Pure.

`LongBody` cuts the text before commas between values and behind brackets. To each piece it adds the brackets that are
open at its ends, and a value beside each cut; then a parser judges the piece as a text of its own. So what counts as
JSON is the parser's to say, and none of it is said twice: where a cut is wrong, the piece is not JSON, since a comma,
a bracket and those that are added fit one state of a parser alone. Of a string over many blocks the blocks within are
judged as strings of their own; in the piece around them a space stands for each, which no half of an escape or of a
character goes with.

Between two cuts JSON has a key, a value and blanks at most. Text with more than that is refused at once, and so is a
number of more than a megabyte, which JSON would allow.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from secrets import token_hex
from typing import Any, Final, NamedTuple

import orjson

from gateway.bodies.json_cuts import ESCAPES, Cut, last_cut, note_brackets

BLOCK_BYTES: Final = 32 * 1024  # parsed within a few milliseconds whatever is in it
_MOST_KEPT: Final = 4 * BLOCK_BYTES  # of a piece, so that no cut goes through `kept`
_MOST_UNCUT: Final = 32 * BLOCK_BYTES  # of what is read between two cuts: both ends of two strings, blanks, a number
_MOST_QUOTES: Final = 4  # between two cuts: of a key and its value
_MOST_DEPTH: Final = 1024  # the parser's own
_TAIL: Final = 128
_BLANK: Final = b" \t\r\n"
# Escapes that would mislead a search get other bytes, which no string may contain.
_ESCAPED: Final = tuple((escape, b"\x01\x02") for escape in ESCAPES)
# Where a string may be cut: not within an escape or a character, nor before the second half of a pair of escapes.
_CUT: Final = re.compile(rb"\x01|\\(?!u[dD][c-fC-F])|(?<=[^\\\x01\x02]{6})[\x20-\x21\x23-\x5b\x5d-\x7f\xc2-\xf4]")
_SQUARE, _CURLY = b"[{"
_PLAIN: Final = b"[]{}:,+-.0123456789eEtrufalsn \t\r\n"  # all that may stand outside of strings
_CLOSING: Final = {_SQUARE: b"]", _CURLY: b"}"}
_UNDER: Final = f"under-{token_hex(16)}"  # names the key at the top level whose value was cut
_BEGINS: Final = f"begins-{token_hex(16)}"  # names what was added at a cut: behind it, and before it
_ENDS: Final = f"ends-{token_hex(16)}"
_UNDER_KEY: Final = orjson.dumps(_UNDER)
_BEGINS_KEY: Final = orjson.dumps(_BEGINS)
_ENDS_KEY: Final = orjson.dumps(_ENDS)


class NotJsonError(ValueError):
    """The text is not JSON, or nested too deeply."""


class Part(NamedTuple):
    """A piece that was judged.

    Attributes:
        content: its values at the top level; of the last one, perhaps a part. Not a mapping: the body is not an object.
        under: more of the value that was cut before this piece.
        cut: the last value is an object under a key of `kept`, and goes on in the next piece.
        text: the piece with what was added.
        places: where the bytes of `text` stand in the body: for each run, its start here and there.
    """

    content: Any
    under: Any
    cut: bool
    text: bytes
    places: tuple[tuple[int, int], ...]

    def place(self, at: int) -> int:
        """Where the byte at `at` of the text stands in the body."""
        start, there = max((one for one in self.places if one[0] <= at), default=(0, 0))
        return there + at - start


class LongBody:
    """One body.

    Args:
        pieces: of the body.
        kept: keys at the top level whose values stay in one part where they are not longer than a few blocks.

    Attributes:
        deepest: the most brackets that were open at once so far.
    """

    def __init__(self, pieces: Sequence[bytes], kept: Sequence[str] = ()) -> None:
        self.deepest = 0
        self._pieces = pieces
        self._size = sum(map(len, pieces))
        self._kept = kept
        self._runs: list[tuple[int, bytes]] = []  # that are not judged yet: each with its place in the body
        self._held = 0  # bytes of them
        self._uncut = 0  # those behind the last cut
        self._quotes = 0  # of those
        self._began: bytes = b""  # brackets that were open where they begin
        self._begins = False  # they begin behind one that opens
        self._open = bytearray()  # brackets that are open now
        self._in_string = False
        self._over = False  # all brackets are closed again: blanks alone may follow
        self._clean = False  # a block that begins now begins with a whole character
        self._ends_clean = False  # and the one that is read ends with one
        self._cut = False  # within a value of `kept`

    def parts(self) -> Iterator[Part | None]:
        """Its parts. None: there is none yet, but a step's work is done.

        Raises:
            NotJsonError: it is not JSON.
        """
        at, rest = 0, b""
        for block in blocks(self._pieces):
            text = rest + block
            plain, size = self._taken(text)
            rest = text[size:]
            if size:
                yield self._read(at, text[:size] if rest else text, plain)
            at += size
        if rest:
            self._ends_clean = False
            yield self._read(at, rest, _without_escapes(rest))
        yield self._judged(b"")

    def _taken(self, text: bytes) -> tuple[bytes, int]:
        """A block without what misleads a search, and how much of it is read now: it ends with a whole character."""
        size = len(text)
        size -= (size - len(text.rstrip(b"\\"))) % 2
        plain = _without_escapes(text[:size] if size < len(text) else text)
        if self._in_string == (plain.count(b'"') % 2 == 0):
            last = plain.rfind(b'"')
            cuts = [cut.start() for cut in _CUT.finditer(plain, max(0, size - _TAIL)) if last < cut.start() <= size - 8]
            if cuts and cuts[-1] > 0:
                size = cuts[-1]
                plain = plain[:size]
                self._ends_clean = True
                return plain, size
        self._ends_clean = False
        return plain, size

    def _read(self, at: int, block: bytes, plain: bytes) -> Part | None:
        """Reads one block, which stands at `at`. `plain`: the same without what misleads a search."""
        clean, self._clean = self._clean, self._ends_clean
        if self._in_string and plain.find(b'"') < 0:
            if clean and self._clean:
                _parsed(b'"%b"' % block)
                self._keep(at, b" ")
            elif len(block) > 2 * _TAIL and not self._clean and at + len(block) < self._size:
                raise NotJsonError("characters that no string may contain")  # else there were a place to cut
            else:
                self._keep(at, block)
            return None
        if not self._in_string and not block.strip(_BLANK):
            self._keep(at, b" ")
            return None
        if self._over:
            raise NotJsonError("more than one value")
        in_string, quotes = self._in_string, plain.count(b'"')
        self._in_string ^= quotes % 2 == 1
        cut = last_cut(plain, _MOST_QUOTES, ends_in_string=self._in_string)
        if cut is None:
            if not in_string and not quotes and plain.translate(None, _PLAIN):
                raise NotJsonError("unexpected character")
            self._quotes += quotes
            self._keep(at, block)
            return None
        return self._read_to(cut, at, block, plain, in_string=in_string)

    def _read_to(self, cut: Cut, at: int, block: bytes, plain: bytes, *, in_string: bool) -> Part | None:
        """Reads a block with a cut. `in_string`: it begins within one."""
        try:
            deepest = note_brackets(self._open, plain[: cut.at], in_string=in_string)
        except ValueError as error:
            raise NotJsonError(str(error)) from error
        self.deepest = max(self.deepest, deepest)
        if len(self._open) > _MOST_DEPTH:
            raise NotJsonError("depth limit exceeded")
        self._keep(at, block[: cut.at])
        behind = block[cut.at :]
        part = None
        if self._open:
            part = self._judged(self._closing(opens=cut.opens))
        elif behind.strip(_BLANK):
            raise NotJsonError("more than one value")
        else:
            self._over = True
        if part is not None:
            self._began, self._begins = bytes(self._open), cut.opens
            self._runs, self._held = [], 0
        self._uncut, self._quotes = 0, plain.count(b'"', cut.at)
        self._keep(at + cut.at, behind)
        return part

    def _keep(self, at: int, run: bytes) -> None:
        self._runs.append((at, run))
        self._held += len(run)
        self._uncut += len(run)
        if self._quotes > _MOST_QUOTES or self._uncut > _MOST_UNCUT:
            raise NotJsonError("neither a comma nor a bracket where one must be")

    def _judged(self, closing: bytes) -> Part | None:
        """What the kept runs say. None: they end within a value of `kept`, and stay."""
        opening = self._opening()
        places, start = [], len(opening)
        for there, run in self._runs:
            places.append((start, there))
            start += len(run)
        text = b"".join((opening, *(run for _, run in self._runs), closing))
        content = _parsed(text)
        under, cut = None, False
        if isinstance(content, dict):
            content.pop(_BEGINS, None)
            content.pop(_ENDS, None)
            under = content.pop(_UNDER, None)
            ends = [_marks(content.get(key)) for key in self._kept]
            cut = (_marks(under) and self._cut) or any(ends)
            if any(ends) and closing and self._held < _MOST_KEPT:
                return None
        self._cut = cut
        return Part(content, under, cut, text, tuple(places))

    def _opening(self) -> bytes:
        """Brackets and values that bring a parser to where the kept runs begin."""
        if not self._began:
            return b""
        value = b"" if self._begins else b'""'  # what follows cannot be a part of it, as of a number
        keys = chain(
            (_UNDER_KEY if len(self._began) > 1 else _BEGINS_KEY, _BEGINS_KEY), repeat(b'""')
        )  # long no deeper
        opened = [b"{%b:" % key if one == _CURLY else b"[" for one, key in zip(self._began, keys, strict=False)]
        if self._begins:
            opened[-1] = self._began[-1:]
        return b"".join((*opened, value))

    def _closing(self, *, opens: bool) -> bytes:
        """A value, and the brackets that end the text where a cut is now. `opens`: it is behind one that opens."""
        comma = b"" if opens else b","
        innermost = len(self._open) - 1
        closed = []
        for depth in range(innermost, -1, -1):
            one = self._open[depth]
            if one == _CURLY and depth in (innermost, 1):
                closed.append(b"%b%b:0" % (comma if depth == innermost else b",", _ENDS_KEY))
            elif depth == innermost:
                closed.append(comma + b"0")
            closed.append(_CLOSING[one])
        return b"".join(closed)


def blocks(pieces: Sequence[bytes]) -> Iterator[bytes]:
    """The bytes of the pieces in blocks of `BLOCK_BYTES`; the last one may be shorter."""
    begun: list[bytes] = []
    missing = BLOCK_BYTES
    for piece in pieces:
        start = 0
        while start < len(piece):
            begun.append(piece[start : start + missing])
            start += missing
            missing -= len(begun[-1])
            if not missing:
                yield b"".join(begun)
                begun, missing = [], BLOCK_BYTES
    if begun:
        yield b"".join(begun)


def _without_escapes(text: bytes) -> bytes:
    if text.find(b"\\") >= 0:
        for escaped, other in _ESCAPED:
            text = text.replace(escaped, other)
    return text


def _marks(value: Any) -> bool:
    """Removes what was added to a value; whether it was cut."""
    if not isinstance(value, dict):
        return False
    value.pop(_BEGINS, None)
    return value.pop(_ENDS, None) is not None


def _parsed(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise NotJsonError(str(error)) from error
