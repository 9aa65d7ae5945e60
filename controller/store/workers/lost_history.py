"""What the ledger knows of its own loss, and which worker's agent made it go above what it has seen."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from controller.domain.events import NewEvent
from controller.store.core.database import Connection, prepare_connection
from controller.store.core.events import write_events

_LEDGER: Final = """
    select l.term, w.session, w.unproven,
           extract(epoch from clock_timestamp() - w.above_at)::float8 as last_s
      from lease l, workers w where l.id = 1 and w.id = $1 and w.deleted_at is null"""
_MARK: Final = "update workers set above_at = clock_timestamp() where id = $1"


PROMOTED: Final = "database_promoted"


@dataclass(frozen=True, slots=True)
class LedgerSeen:
    """The ledger's numbers for one worker.

    Attributes:
        last_s: seconds since it went above what this worker's agent named; None if it never did.
        unproven: the agent joined under a version without proofs, and has shown none yet.
    """

    term: int
    session: int
    last_s: float | None
    unproven: bool


async def read_seen(connection: Connection, worker_id: str) -> LedgerSeen | None:
    """The ledger's numbers for this worker; None if it is deleted."""
    row = await connection.fetchrow(_LEDGER, worker_id)
    return None if row is None else LedgerSeen(row["term"], row["session"], row["last_s"], row["unproven"])


async def mark_above(connection: Connection, worker_id: str) -> None:
    """Keeps that the ledger has gone above what this worker's agent named."""
    await connection.execute(_MARK, worker_id)


async def read_cut(connection: Connection) -> datetime | None:
    """When a loss of commits was noticed last; None: never."""
    cut_at: datetime | None = await connection.fetchval("select cut_at from lease where id = 1")
    return cut_at


async def tell_promotion(connection: Any, before: int, now: int) -> None:
    """Writes the event of a failover, in the transaction in which a leader notices it, on the lease's connection."""
    await prepare_connection(connection)
    message = (
        f"the database went from timeline {before} to {now}, as after a failover: its last commits may be lost, and "
        "all agents tell anew what runs"
    )
    event = NewEvent(PROMOTED, message, ("controller:failover",), {"before": before, "now": now})
    await write_events(connection, [event])
