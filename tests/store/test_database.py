"""The pool, and the limits of its shares."""

import asyncio

import pytest

from controller.store.core import database as database_module
from controller.store.core.database import Database

LIMIT_S = 20.0


async def test_a_flood_through_a_share_leaves_the_others_their_connections(migrated: Database) -> None:
    share = migrated.share(2)
    inside = 0
    most = 0
    full, enough = asyncio.Event(), asyncio.Event()

    async def one() -> None:
        nonlocal inside, most
        async with share.connection() as connection:
            inside += 1
            most = max(most, inside)
            if inside == 2:
                full.set()
            await connection.fetchval("select 1")
            await enough.wait()
            inside -= 1

    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        for _ in range(40):
            group.create_task(one())
        await full.wait()
        held = [migrated.connection() for _ in range(migrated.pool.get_max_size() - 2)]
        for each in held:
            await each.__aenter__()
        for each in held:
            await each.__aexit__(None, None, None)
        assert inside == 2
        enough.set()
    assert most == 2


async def test_waiting_for_a_connection_of_a_share_times_out(
    migrated: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "ACQUIRE_TIMEOUT_S", 0.05)
    share = migrated.share(1)
    async with share.connection():
        with pytest.raises(TimeoutError):
            async with share.connection():
                raise AssertionError("two hold what one may")
    async with share.connection() as connection:
        assert await connection.fetchval("select 1") == 1
