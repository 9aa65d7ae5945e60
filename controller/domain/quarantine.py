"""The newest connections of a worker, and the quarantine that follows where they contradict each other. Frozen."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

TWO_IDENTITIES: Final = "two_identities"
RECONNECTS_TOO_OFTEN: Final = "reconnects_too_often"
QUARANTINED: Final = frozenset({TWO_IDENTITIES, RECONNECTS_TOO_OFTEN})
HELLOS_KEPT: Final = 16  # more than a decision needs


@dataclass(frozen=True, slots=True)
class HelloSeen:
    """One hello of a worker. `identity` tells agents apart; `address` is where an operator finds the agent."""

    at: datetime
    identity: str
    address: str


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Why a worker is quarantined, until when, and the addresses concerned, the newest last."""

    reason: str
    until: datetime
    addresses: tuple[str, ...]
