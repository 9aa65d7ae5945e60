"""A body in the pieces in which it came. Tiny ones are joined: each would take twenty times the bytes that count."""

from typing import Final

_TINY_BYTES: Final = 1024


def keep(pieces: list[bytes], data: bytes) -> None:
    """Adds a piece, to the last one where both are tiny."""
    if pieces and len(data) < _TINY_BYTES and len(pieces[-1]) < _TINY_BYTES:
        pieces[-1] += data
    else:
        pieces.append(data)
