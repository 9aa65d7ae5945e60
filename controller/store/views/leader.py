"""Who leads, read from the lease row."""

from controller.store.views.paging import Reader
from schemas.objects import LeaderView


async def read_term(connection: Reader) -> int:
    """The leader's term."""
    rows = await connection.fetch("select term from lease where id = 1")
    return int(rows[0]["term"])


async def read_leader(connection: Reader, *, leading: bool) -> LeaderView:
    """The lease as it stands; `leading`: the controller that asks leads."""
    rows = await connection.fetch("select term, holder, nullif(renewed_at, '-infinity') as renewed_at from lease")
    return LeaderView(leading=leading, **dict(rows[0]))
