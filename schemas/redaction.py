"""How the value of a secret is shown: by a mark in its place. Agents and controllers say it alike."""

from typing import Final

MARK: Final = "[redacted]"
LEAST_BYTES: Final = 8  # shorter values are found in ordinary words, and stay
