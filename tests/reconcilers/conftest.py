"""A migrated database and the reconcilers of one term over it."""

from collections.abc import AsyncIterator

import pytest

from controller.store.core.database import Database
from support.database.migrated import migrated_database, migrated_template
from support.database.postgres import PostgresServer
from support.leading.leader_term import LeaderTerm


@pytest.fixture(scope="session")
def template(postgres: PostgresServer) -> str:
    return migrated_template(postgres)


@pytest.fixture
async def db(postgres: PostgresServer, template: str) -> AsyncIterator[Database]:
    async with migrated_database(postgres, template) as opened:
        yield opened


@pytest.fixture
async def leader_term(db: Database) -> AsyncIterator[LeaderTerm]:
    begun = await LeaderTerm.begin(db)
    yield begun
    await begun.aclose()
