"""The API over a real database, served on loopback."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from controller.store.core.database import Database
from support.database.migrated import migrated_database, migrated_template
from support.database.postgres import PostgresServer
from support.leading.models_floor import Floor
from support.leading.served_api import ServedApi, served


@pytest.fixture(scope="session")
def template(postgres: PostgresServer) -> str:
    return migrated_template(postgres)


@pytest.fixture
async def db(postgres: PostgresServer, template: str) -> AsyncIterator[Database]:
    async with migrated_database(postgres, template) as database:
        yield database


@pytest.fixture
async def api(db: Database) -> AsyncIterator[ServedApi]:
    async with served(db) as running:
        yield running


@pytest.fixture
async def floor(api: ServedApi, db: Database) -> AsyncIterator[Floor]:
    """Workers and running instances behind the gateway; the test adds them."""
    async with AsyncExitStack() as stack:
        yield Floor(api, db, stack)
