"""What is true of every refusal."""

from typing import Final

_MOST_CHARS: Final = 20_000


def explained(error: Exception) -> None:
    """It says why, at a length that a person can read."""
    assert 0 < len(str(error)) < _MOST_CHARS
