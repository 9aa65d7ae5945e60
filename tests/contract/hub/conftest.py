"""A hub over a migrated database."""

from collections.abc import AsyncIterator

import pytest

from controller.store.core.database import Database
from support.leading.served_hub import HubUnderTest, serving


@pytest.fixture
async def hub(migrated: Database) -> AsyncIterator[HubUnderTest]:
    async with serving(migrated) as under_test:
        yield under_test
