"""The history that an agent has received and the ledger lost, by a restore or a failover. Pure.

An agent that could name any term would end the leader's at will. So only numbers with a proof are believed. The proof
is made with a key of the ledger, which backups and standbys have too. Agents that joined under a version without proofs
are believed without a proof until they have shown their first.
"""

import hashlib
import hmac
from dataclasses import dataclass
from typing import Final

# Each change of the leader adds one: no history has more of them. Numbers further ahead are not believed.
MAX_LEAP: Final = 1_000_000
# Without a proof: in one history an agent receives only what the ledger holds, so an honest agent needs this once.
ABOVE_EVERY_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class ReportedTerm:
    """The highest numbers, as the ledger has them or as an agent names them."""

    term: int
    session: int


def proof_of(key: bytes, worker: str, seen: ReportedTerm) -> str:
    """The proof that the agent of this worker got these numbers, in hexadecimal digits."""
    return hmac.new(key, f"told {worker} {seen.term} {seen.session}".encode(), hashlib.sha256).hexdigest()


def is_proven(key: bytes, worker: str, seen: ReportedTerm, proof: str) -> bool:
    """Whether a controller of this ledger has sent these numbers to the agent of this worker."""
    return hmac.compare_digest(proof_of(key, worker, seen).encode(), proof.encode())


def term_to_pass(ledger: ReportedTerm, agent: ReportedTerm, last_s: float | None) -> int | None:
    """The term above which the lease must go, so that the agent obeys again; None if no loss is believed.

    Args:
        ledger: the lease's term, and the worker's session.
        agent: what its hello names.
        last_s: seconds since the ledger last went above a term that this agent named; None if never, or with a proof.
    """
    lost = agent.term > ledger.term or agent.session > ledger.session
    if not lost or agent.term > ledger.term + MAX_LEAP or agent.session > ledger.session + MAX_LEAP:
        return None
    if last_s is not None and 0 <= last_s < ABOVE_EVERY_S:
        return None
    return max(agent.term, ledger.term)
