"""Gateways before a deployment `chat`, one for all tests of a file."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest_asyncio

from support.database.postgres import quick_folder
from support.processes.cluster import Cluster, Prepared
from support.processes.served_models import listed, make_key, serve


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(prepared: Prepared) -> AsyncIterator[Cluster]:
    """Its simulated engine has every path."""
    async with _serving(prepared, rig=True) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def product(prepared: Prepared) -> AsyncIterator[Cluster]:
    """Its engine is `simulated` as a user has it."""
    async with _serving(prepared, rig=False) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def key(cluster: Cluster) -> str:
    """A key of the role `inference` for `chat` alone."""
    return await make_key(cluster, models=["chat"])


@asynccontextmanager
async def _serving(prepared: Prepared, *, rig: bool) -> AsyncIterator[Cluster]:
    with quick_folder() as folder:
        made = Cluster(folder, prepared)
        if rig:
            made.use_rig()
        try:
            await serve(made, chat={})
            await listed(made, "chat")
            yield made
        finally:
            await made.aclose()
