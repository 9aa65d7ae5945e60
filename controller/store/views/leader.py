"""Who leads, read from the lease row."""

from controller.store.views.paging import Reader
from schemas.api.leader import LeaderView


async def read_leader(connection: Reader, *, leading: bool) -> LeaderView:
    """The lease as it stands; `leading`: the controller that asks leads."""
    rows = await connection.fetch("select term, holder, nullif(renewed_at, '-infinity') as renewed_at from lease")
    return LeaderView(leading=leading, **dict(rows[0]))
