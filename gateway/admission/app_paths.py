"""Paths of custom servers below `/apps/NAME`: which of them a server sees. Pure.

Servers decode, normalise and cut paths in their own ways. A path passes only if each of these ways leads to the same
place: it may have no spelling of `..`, of a slash or of a backslash but the plain slash.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote_to_bytes

APPS: Final = b"/apps/"
_NAME: Final = re.compile(rb"[a-z0-9][a-z0-9-]{0,252}")
_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_CUT: Final = re.compile("[;?#]")  # behind which servers see no part of the path
_MOST_DECODED: Final = 4  # times that a path can be decoded and changes
_IGNORED: Final = " "  # of a part, by file systems and some servers


def app_of(path: bytes) -> tuple[str, bytes] | None:
    """The deployment that a path names, and the server's own path; None if it names none."""
    name, slash, rest = path.removeprefix(APPS).partition(b"/")
    if not path.startswith(APPS) or not _NAME.fullmatch(name):
        return None
    return name.decode(), slash + rest if slash else b"/"


def path_problem(path: bytes) -> str | None:
    """Why a server may read the path as another path; None if it cannot."""
    if not path.isascii():
        return "has bytes that are not ASCII; encode them as %XX"
    if path.startswith(b"//"):
        return "begins with //; write one slash"
    if _ESCAPE.search(path):
        return "has a % that begins no escape; write it as %25"
    slashes = path.count(b"/")
    for _ in range(_MOST_DECODED):
        problem = _problem_of(path, slashes)
        decoded = unquote_to_bytes(path)
        if problem is not None or decoded == path:
            return problem
        path = decoded
    return "is encoded several times over; encode it once"


def _problem_of(path: bytes, slashes: int) -> str | None:
    try:
        text = unicodedata.normalize("NFKC", path.decode())
    except UnicodeDecodeError:
        return "is not UTF-8 once it is decoded; encode it as UTF-8"
    if text.count("/") != slashes:
        return "has an encoded slash; write / where a part ends"
    if "\\" in text:
        return "has a backslash; write / where a part ends"
    if _CONTROL.search(text):
        return "has control characters; remove them"
    for part in text.split("/"):
        name = _CUT.split(part, maxsplit=1)[0].strip(_IGNORED)
        if name and not name.strip("."):
            return "has a part of dots alone; write the path that it leads to"
    return None


def is_listed(path: bytes, listed: Sequence[str]) -> bool:
    """Whether the path is one of those, or below one."""
    return any(name == "/" or path == name.encode() or path.startswith(name.encode() + b"/") for name in listed)
