"""Sizes and durations as text, such as `20GiB` and `5m`. Inside they are MiB, bytes and seconds."""

import re
from typing import Final

_SIZE: Final = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(KiB|MiB|GiB|TiB|KB|MB|GB|TB)\s*$", re.IGNORECASE)
_SIZE_BYTES: Final = {
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_DURATION_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MIB: Final = 2**20
_STEP: Final = 1024
_MAX_MIB: Final = 2**40  # an EiB: larger than any machine, and it fits a bigint
_MAX_DURATION_CHARS: Final = 64  # the search for parts is quadratic
_MAX_DURATION_S: Final = 10 * 365 * 86400.0


def parse_size_mib(value: object) -> int:
    """Parses a size such as `20GiB` or `512 MB`, rounded up, so that a claim is never smaller than requested.

    Raises:
        ValueError: not a valid size, or a bare number, whose unit is unknown.
    """
    match = _SIZE.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a valid size; write a number with a unit, such as 20GiB or 512MiB")
    exact = float(match[1]) * _SIZE_BYTES[match[2].lower()] / _MIB
    if not 0 <= exact <= _MAX_MIB:
        raise ValueError(f"{value!r} is larger than any machine; write a size such as 20GiB")
    return int(exact) if exact == int(exact) else int(exact) + 1


def format_bytes(number: int) -> str:
    """A number of bytes for people: `16.4 GiB`, `512 MiB`, `3 KiB`."""
    size, units = float(number), ["GiB", "MiB", "KiB", "B"]
    while size >= _STEP and len(units) > 1:
        units.pop()
        size /= _STEP
    unit = units[-1]
    return f"{size:.1f}".removesuffix(".0") + f" {unit}"


def parse_duration_s(value: object) -> float:
    """Parses a duration: `30s`, `5m`, `1h30m`, or a number of seconds. Raises ValueError if not a valid duration."""
    wrong = f"{value!r} is not a valid duration; write seconds or a text such as 30s, 5m or 1h30m"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(wrong)
    if isinstance(value, str):
        text = value.strip().lower() if len(value) <= _MAX_DURATION_CHARS else ""
        if _DURATION_PART.sub("", text) or not text:
            seconds = _plain_number(text, wrong)
        else:
            seconds = sum(float(n) * _DURATION_S[unit] for n, unit in _DURATION_PART.findall(text))
    else:
        seconds = float(value)
    if not 0 <= seconds <= _MAX_DURATION_S:
        raise ValueError(wrong)
    return seconds


def _plain_number(text: str, wrong: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise ValueError(wrong)
    return float(text)
