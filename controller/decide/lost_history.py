"""What an agent has seen that the ledger does not hold: it lost commits, by a restore or a failover. Pure.

An agent that could name any term would end the leader's at will. So it is believed what the controller has proven to
it: the proof is made with a key of the ledger, which backups and standbys have too. Agents that joined under a version
without proofs are believed without one until they have shown their first.
"""

import hashlib
import hmac
from dataclasses import dataclass
from typing import Final

# One more for each change of the leader: no history has more of them. What is further ahead is not believed.
MAX_LEAP: Final = 1_000_000
# Without a proof: in one history an agent sees nothing that the ledger does not hold, so an honest one needs this once.
ABOVE_EVERY_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Seen:
    """The highest numbers, as the ledger has them or as an agent names them."""

    term: int
    session: int


def proof_of(key: bytes, worker: str, seen: Seen) -> str:
    """The proof that the agent of this worker got these numbers, in hexadecimal digits."""
    return hmac.new(key, f"told {worker} {seen.term} {seen.session}".encode(), hashlib.sha256).hexdigest()


def is_proven(key: bytes, worker: str, seen: Seen, proof: str) -> bool:
    """Whether a controller of this ledger has sent these numbers to the agent of this worker."""
    return hmac.compare_digest(proof_of(key, worker, seen).encode(), proof.encode())


def term_to_pass(ledger: Seen, agent: Seen, last_s: float | None) -> int | None:
    """The term above which the lease must go, so that the agent obeys again; None if nothing is lost, or to believe.

    Args:
        ledger: the lease's term, and the worker's session.
        agent: what its hello names.
        last_s: seconds since the ledger last went above what this agent named; None if it never did, or that is proven.
    """
    lost = agent.term > ledger.term or agent.session > ledger.session
    if not lost or agent.term > ledger.term + MAX_LEAP or agent.session > ledger.session + MAX_LEAP:
        return None
    if last_s is not None and 0 <= last_s < ABOVE_EVERY_S:
        return None
    return max(agent.term, ledger.term)
