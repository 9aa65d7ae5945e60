"""The leader, read from the lease row."""

from controller.store.core.database import Reader, view_of
from schemas.api.audit import LeaderView


async def read_term(connection: Reader) -> int:
    rows = await connection.fetch("select term from lease where id = 1")
    return int(rows[0]["term"])


async def read_leader(connection: Reader, *, leading: bool) -> LeaderView:
    """The lease as stored; `leading`: this controller is the leader."""
    rows = await connection.fetch("select term, holder, nullif(renewed_at, '-infinity') as renewed_at from lease")
    return view_of(LeaderView, rows[0], leading=leading)


async def read_holder(connection: Reader) -> str | None:
    """The holder of the lease; None if it has expired."""
    rows = await connection.fetch(
        "select holder from lease where renewed_at + make_interval(secs => ttl_s) > clock_timestamp()"
    )
    return rows[0]["holder"] if rows else None
