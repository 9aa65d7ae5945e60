"""A migrated database and the reconcilers of one term over it."""

from collections.abc import AsyncIterator

import pytest

from controller.store.core.database import Database
from support.leader_term import Reign
from support.migrated import migrated_database, migrated_template
from support.postgres import PostgresServer


@pytest.fixture(scope="session")
def template(postgres: PostgresServer) -> str:
    return migrated_template(postgres)


@pytest.fixture
async def db(postgres: PostgresServer, template: str) -> AsyncIterator[Database]:
    async with migrated_database(postgres, template) as opened:
        yield opened


@pytest.fixture
async def leader_term(db: Database) -> AsyncIterator[Reign]:
    begun = await Reign.begin(db)
    yield begun
    await begun.aclose()
