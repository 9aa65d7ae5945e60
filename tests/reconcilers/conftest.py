"""A migrated database and the reconcilers of one term over it."""

from collections.abc import AsyncIterator

import pytest

from controller.store.core.database import Database
from support.leading.leader_term import LeaderTerm


@pytest.fixture
def db(migrated: Database) -> Database:
    return migrated


@pytest.fixture
async def leader_term(db: Database) -> AsyncIterator[LeaderTerm]:
    begun = await LeaderTerm.begin(db)
    yield begun
    await begun.aclose()
