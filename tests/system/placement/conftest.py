"""One controller for all cases; hosts come and go with each."""

from collections.abc import AsyncIterator

import pytest_asyncio

from support.database.postgres import quick_folder
from support.processes.cluster import Prepared
from support.processes.placement_site import Site, site_in


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def long_lived(prepared: Prepared) -> AsyncIterator[Site]:
    with quick_folder() as folder:
        async with site_in(folder, prepared) as site:
            yield site


@pytest_asyncio.fixture(loop_scope="session")
async def site(long_lived: Site) -> AsyncIterator[Site]:
    """Without hosts and deployments before and after."""
    yield long_lived
    await long_lived.clear()
