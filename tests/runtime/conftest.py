"""Fixtures of the runtime's tests, and the check that each leaves no task and no child."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from runtime.computation_witness import children

_SETTLE_S = 2.0

CREATE_LEASE = """
CREATE TABLE lease (id smallint PRIMARY KEY CHECK (id = 1), term bigint NOT NULL, holder text NOT NULL,
    acquired_at timestamptz NOT NULL, renewed_at timestamptz NOT NULL, ttl_s double precision NOT NULL,
    cut_at timestamptz, settled_at timestamptz, timeline integer);
CREATE FUNCTION database_timeline() RETURNS integer LANGUAGE sql AS 'SELECT 1';
INSERT INTO lease VALUES (1, 0, '', '-infinity', '-infinity', 10);
"""


@pytest.fixture(autouse=True)
async def nothing_left_behind(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    mine = asyncio.current_task()
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before - {mine, asyncio.current_task()}
    if left:
        _, left = await asyncio.wait(left, timeout=_SETTLE_S)
    assert not left, f"tasks left behind by {request.node.name}: {left}"
    assert not children(), f"children left behind by {request.node.name}"


@pytest.fixture
async def connect(database: str) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    """Opens connections to a database with a lease; those still open at the end are closed."""
    opened = []

    async def open_one() -> Any:
        opened.append(await asyncpg.connect(database, timeout=10))
        return opened[-1]

    await (await open_one()).execute(CREATE_LEASE)
    yield open_one
    for connection in opened:
        if not connection.is_closed():
            await connection.close(timeout=10)
