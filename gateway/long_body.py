"""Reads a long JSON body in short steps: what its top level says, without the values below it. Pure.

`LongBody` cuts the text at commas between values. To each piece it adds the brackets that are open at its ends, and a
value beside each cut; then a parser judges the piece as a text of its own. So what counts as JSON is the parser's to
say, and none of it is said twice: where a cut is wrong, the piece is not JSON, since a comma and the added brackets
fit one state of a parser alone. Of a string over many blocks the blocks within are judged as strings of their own; in
the piece around them a space stands for each, which no half of an escape or of a character goes with.
"""

import re
from collections.abc import Iterator, Sequence
from secrets import token_hex
from typing import Any, Final, NamedTuple

import orjson

BLOCK_BYTES: Final = 64 * 1024  # parsed within about a millisecond
_MOST_KEPT: Final = 16 * BLOCK_BYTES  # of a piece, so that no cut goes through `kept`
_MOST_DEPTH: Final = 1024  # the parser's own
_TAIL: Final = 128
_BLANK: Final = b" \t\r\n"
# Escapes that would mislead a search get other bytes, which no string may contain.
_ESCAPED: Final = ((b"\\\\", b"\x01\x02"), (b'\\"', b"\x01\x02"))
# Where a string may be cut: not within an escape or a character, nor before the second half of a pair of escapes.
_CUT: Final = re.compile(rb"\x01|\\(?!u[dD][c-fC-F])|(?<=[^\\\x01\x02]{6})[\x20-\x21\x23-\x5b\x5d-\x7f\xc2-\xf4]")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
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
    """

    def __init__(self, pieces: Sequence[bytes], kept: Sequence[str] = ()) -> None:
        self._pieces = pieces
        self._size = sum(map(len, pieces))
        self._kept = kept
        self._runs: list[tuple[int, bytes]] = []  # that are not judged yet: each with its place in the body
        self._held = 0  # bytes of them
        self._began: bytes = b""  # brackets that were open where they begin
        self._open = bytearray()  # brackets that are open now
        self._in_string = False
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
        comma = _last_comma(plain, ends_in_string=self._in_string == (plain.count(b'"') % 2 == 0))
        if comma < 0:
            if not self._in_string and plain.find(b'"') < 0 and plain.translate(None, _PLAIN):
                raise NotJsonError("unexpected character")
            self._keep(at, block)
            self._note_brackets(plain)
            return None
        self._note_brackets(plain[:comma])
        self._keep(at, block[:comma])
        part = self._judged(self._closing())
        if part is None:
            self._runs.append((at + comma, block[comma:]))
            self._held += len(block) - comma
        else:
            self._began = bytes(self._open)
            self._runs, self._held = [(at + comma, block[comma:])], len(block) - comma
        self._note_brackets(plain[comma:])
        return part

    def _keep(self, at: int, run: bytes) -> None:
        self._runs.append((at, run))
        self._held += len(run)

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
        keys = (_BEGINS_KEY if depth or len(self._began) == 1 else _UNDER_KEY for depth in range(len(self._began)))
        opened = (b"{%b:" % key if one == _CURLY else b"[" for one, key in zip(self._began, keys, strict=True))
        return b"".join((*opened, b"0"))

    def _closing(self) -> bytes:
        """A value, and the brackets that end the text where a cut is now."""
        if not self._open:
            raise NotJsonError("more than one value")
        innermost = len(self._open) - 1
        closed = []
        for depth in range(innermost, -1, -1):
            one = self._open[depth]
            if one == _CURLY and depth in (innermost, 1):
                closed.append(b",%b:0" % _ENDS_KEY)
            elif depth == innermost:
                closed.append(b",0")
            closed.append(_CLOSING[one])
        return b"".join(closed)

    def _note_brackets(self, plain: bytes) -> None:
        """Opens and closes the brackets of a text; `in_string` afterwards says of its end."""
        texts = plain.split(b'"')
        outside = texts[1::2] if self._in_string else texts[0::2]
        self._in_string ^= len(texts) % 2 == 0
        brackets = (outside[0] if len(outside) == 1 else b"".join(outside)).translate(None, _NO_BRACKETS)
        for _ in range(4):  # what closes at once need not be looked at one by one
            brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
        opened = self._open
        for one in brackets:
            if one in _CLOSING:
                opened.append(one)
            elif opened:
                opened.pop()
            else:
                raise NotJsonError("a bracket closes that was not opened")
        if len(opened) > _MOST_DEPTH:
            raise NotJsonError("depth limit exceeded")


def blocks(pieces: Sequence[bytes]) -> Iterator[bytes]:
    """The bytes of the pieces in blocks: none is longer than `BLOCK_BYTES`, and few are shorter."""
    short: list[bytes] = []
    size = 0
    for piece in pieces:
        for start in range(0, len(piece), BLOCK_BYTES):
            block = piece[start : start + BLOCK_BYTES]
            if size + len(block) > BLOCK_BYTES:
                yield b"".join(short)
                short, size = [], 0
            short.append(block)
            size += len(block)
    if short:
        yield b"".join(short)


def _without_escapes(text: bytes) -> bytes:
    if text.find(b"\\") >= 0:
        for escaped, other in _ESCAPED:
            text = text.replace(escaped, other)
    return text


def _last_comma(plain: bytes, *, ends_in_string: bool) -> int:
    """Where the last comma outside of strings is; -1: there is none."""
    end = len(plain)
    if ends_in_string:
        end = plain.rfind(b'"')
    while end > 0:
        closes = plain.rfind(b'"', 0, end)
        comma = plain.rfind(b",", closes + 1, end)
        if comma >= 0 or closes < 0:
            return comma
        end = plain.rfind(b'"', 0, closes)
    return -1


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
