"""Clusters whose engines are the rig's: prompts steer them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.processes.cluster import Cluster, Prepared


@pytest.fixture
async def cluster(data_dir: Path, prepared: Prepared) -> AsyncIterator[Cluster]:
    """An empty cluster, not started yet."""
    made = Cluster(data_dir, prepared)
    made.use_rig()
    yield made
    await made.aclose()
