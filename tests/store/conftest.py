"""An open, migrated database for each test."""

from collections.abc import AsyncIterator

import pytest

from controller.store.core.database import Database
from support.database.migrated import migrated_database, migrated_template
from support.database.postgres import PostgresServer


@pytest.fixture(scope="session")
def template(postgres: PostgresServer) -> str:
    return migrated_template(postgres)


@pytest.fixture
async def migrated(postgres: PostgresServer, template: str) -> AsyncIterator[Database]:
    async with migrated_database(postgres, template) as database:
        yield database
