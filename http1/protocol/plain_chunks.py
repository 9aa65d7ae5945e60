"""Chunks of a body that come whole, as those of event streams do: they need no parser, and pass on as they came. Pure.

A chunk is plain if nothing but its length stands in its first line. All else is the parser's.
"""

import re
from typing import Final

from http1.protocol.heads import LAST_CHUNK

_LINE_BYTES: Final = 8  # of the longest first line
_SIZE: Final = re.compile(rb"0{,5}[1-9a-fA-F][0-9a-fA-F]{,5}")
_ODD: Final = -1
_MOST: Final = 4096
_sizes: dict[bytes, int] = {}  # by first line: a memo for the process, and no state


def content_of(data: bytes) -> bytes | None:
    """What the chunks hold of which the bytes consist; None: they are not all whole and plain."""
    line, _, rest = data.partition(b"\r\n")
    content = rest.removesuffix(b"\r\n")
    if (_sizes.get(line) or _size_of(line)) == len(content) == len(rest) - 2:
        return content
    return _content_of_several(data)


def _content_of_several(data: bytes) -> bytes | None:
    pieces, at = [], 0
    while at < len(data):
        end = data.find(b"\r\n", at, at + _LINE_BYTES)
        size = _size_of(data[at:end]) if end > 0 else _ODD
        at = end + 2 + size + 2
        if size == _ODD or data[at - 2 : at] != b"\r\n":
            return None
        pieces.append(data[end + 2 : at - 2])
    return b"".join(pieces) or None


def last_content_of(data: bytes) -> bytes | None:
    """As `content_of`, where the last chunk follows without trailers; empty where it is alone."""
    if not data.endswith(LAST_CHUNK):
        return None
    before = data.removesuffix(LAST_CHUNK)
    return content_of(before) if before else b""


def follow_only(data: bytes) -> bool:
    """Whether nothing follows the head with which the bytes begin but such chunks, so that the next one may come."""
    rest = data[data.find(b"\r\n\r\n") + 4 :]
    return not rest or content_of(rest) is not None


def _size_of(line: bytes) -> int:
    """The length that a chunk's first line states; `_ODD`: it is not plain."""
    if not _SIZE.fullmatch(line):
        return _ODD
    if len(_sizes) >= _MOST:
        _sizes.clear()
    size = _sizes[line] = int(line, 16)
    return size
