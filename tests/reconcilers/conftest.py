"""A migrated database and the reconcilers of one term over it."""

from collections.abc import AsyncIterator

import pytest

from gpuward.controller.store.database import Database
from gpuward.controller.store.migrate import migrate
from support.reign import Reign


@pytest.fixture
async def db(database: str) -> AsyncIterator[Database]:
    opened = await Database.open(database)
    await migrate(opened)
    yield opened
    await opened.close()


@pytest.fixture
async def reign(db: Database) -> AsyncIterator[Reign]:
    begun = await Reign.begin(db)
    yield begun
    await begun.aclose()
