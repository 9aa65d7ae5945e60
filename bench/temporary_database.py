"""A database for one bench, on a PostgreSQL server of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from controller.store.core.database import Database
from support.database.migrated import migrated_database, migrated_template
from support.database.postgres import running_server

T = TypeVar("T")


def run_with_database(work: Callable[[Database], Awaitable[T]]) -> T:
    """Runs `work` in an event loop, with a migrated database that is dropped afterwards."""
    with running_server() as server:
        template = migrated_template(server)

        async def run() -> T:
            async with migrated_database(server, template) as database:
                return await work(database)

        return asyncio.run(run())
