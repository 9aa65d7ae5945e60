"""A cluster under faults, watched from outside by somebody who counts its engines."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.cluster import Cluster
from support.engine_watch import EngineWatch
from support.faults import Faults


@pytest.fixture
async def faults(cluster: Cluster, data_dir: Path) -> AsyncIterator[Faults]:
    with EngineWatch(data_dir) as watch:
        yield Faults(cluster, watch)
