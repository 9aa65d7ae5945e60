"""A cluster of real processes in a folder of its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.cluster import Cluster


@pytest.fixture
async def cluster(data_dir: Path) -> AsyncIterator[Cluster]:
    """An empty cluster: nothing is started yet."""
    made = Cluster(data_dir)
    yield made
    await made.aclose()
