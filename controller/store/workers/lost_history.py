"""Losses of commits: when the ledger noticed one, and by which worker's agent."""

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
class LedgerNumbers:
    """The ledger's numbers for one worker."""

    term: int
    session: int
    last_s: float | None  # since it was raised above the numbers that this worker's agent reported; None: never
    unproven: bool  # the agent joined under a version without proofs, and has shown no proof yet


async def read_numbers(connection: Connection, worker_id: str) -> LedgerNumbers | None:
    """The ledger's numbers for this worker; None if it is deleted."""
    row = await connection.fetchrow(_LEDGER, worker_id)
    return None if row is None else LedgerNumbers(row["term"], row["session"], row["last_s"], row["unproven"])


async def mark_above(connection: Connection, worker_id: str) -> None:
    """Records that the ledger was raised above the numbers that this worker's agent reported."""
    await connection.execute(_MARK, worker_id)


async def read_cut(connection: Connection) -> datetime | None:
    """The time of the last noticed loss of commits; None: never."""
    cut_at: datetime | None = await connection.fetchval("select cut_at from lease where id = 1")
    return cut_at


async def record_promotion(connection: Any, before: int, now: int) -> None:
    """Writes the event of a failover, in the transaction in which a leader notices it, on the lease's connection."""
    await prepare_connection(connection)
    message = (
        f"the database went from timeline {before} to {now}, as after a failover: its last commits may be lost, and "
        "all agents report their processes again"
    )
    event = NewEvent(PROMOTED, message, ("controller:failover",), {"before": before, "now": now})
    await write_events(connection, [event])
