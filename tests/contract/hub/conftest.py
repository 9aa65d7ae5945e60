"""A hub over a migrated database."""

from collections.abc import AsyncIterator

import pytest

from controller.store.core.database import Database
from controller.store.core.migrate import migrate
from support.leading.served_hub import HubUnderTest, serving


@pytest.fixture
async def hub(database: str) -> AsyncIterator[HubUnderTest]:
    opened = await Database.open(database)
    await migrate(opened)
    async with serving(opened) as under_test:
        yield under_test
    await opened.close()
