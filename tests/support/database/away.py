"""The gateway's database while it is away."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


class AwayDatabase:
    """A database that cannot be reached: keys and routes stay as they are."""

    def share(self, _connections: int) -> "AwayDatabase":
        return self

    async def listen_connection(self) -> Any:
        raise OSError("away")

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Any]:
        raise OSError("away")
        yield

    connection = transaction = snapshot
