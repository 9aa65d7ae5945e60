"""Clusters of real processes in their own folders; a watcher counts the engines of some."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.processes.cluster import Cluster, Prepared
from support.processes.engine_watch import EngineWatch
from support.processes.faults import Faults

MakeFaults = Callable[[str], Faults]


@pytest.fixture
async def cluster(data_dir: Path, prepared: Prepared) -> AsyncIterator[Cluster]:
    """An empty cluster, not started yet."""
    made = Cluster(data_dir, prepared)
    yield made
    await made.aclose()


@pytest.fixture
async def make_faults(data_dir: Path, prepared: Prepared) -> AsyncIterator[MakeFaults]:
    """Makes empty clusters by name; several may be under faults at once."""
    made: list[Cluster] = []
    with ExitStack() as stack:

        def make(name: str) -> Faults:
            folder = data_dir / name
            folder.mkdir()
            made.append(Cluster(folder, prepared))
            return Faults(made[-1], stack.enter_context(EngineWatch(folder)))

        yield make
        await asyncio.gather(*(cluster.aclose() for cluster in made))


@pytest.fixture
def faults(make_faults: MakeFaults) -> Faults:
    """One such cluster."""
    return make_faults("one")
