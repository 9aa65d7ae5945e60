"""The mark in place of a secret's value, for agents and controllers."""

from typing import Final

MARK: Final = "[redacted]"
LEAST_BYTES: Final = 8  # shorter values occur in ordinary words, and stay
