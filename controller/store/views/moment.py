"""The moment of a snapshot, by the database's clock."""

from datetime import datetime

from controller.store.core.database import Reader


async def read_moment(connection: Reader) -> datetime:
    """When the transaction of this connection began."""
    (row,) = await connection.fetch("select now() as at")
    at: datetime = row["at"]
    return at
