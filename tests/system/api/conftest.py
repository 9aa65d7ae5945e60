"""The API over a real database, served on loopback."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from controller.store.core.database import Database
from support.leading.models_floor import Floor
from support.leading.served_api import ServedApi, served


@pytest.fixture
def db(migrated: Database) -> Database:
    return migrated


@pytest.fixture
async def api(db: Database) -> AsyncIterator[ServedApi]:
    async with served(db) as running:
        yield running


@pytest.fixture
async def floor(api: ServedApi, db: Database) -> AsyncIterator[Floor]:
    """Workers and running instances behind the gateway; the test adds them."""
    async with AsyncExitStack() as stack:
        yield Floor(api, db, stack)
