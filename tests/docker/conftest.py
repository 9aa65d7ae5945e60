"""One Docker engine for all tests, with a false NVIDIA toolkit. `make test-docker` prepares it."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.docker.dockerd import Dockerd
from support.docker.images import load_empty
from support.standins.controller import ControllerDouble, controller_double


@pytest.fixture(scope="session")
def engine() -> Iterator[Dockerd]:
    """It answers, and bridges work."""
    folder = Path(tempfile.mkdtemp(prefix="gpuward-docker-"))
    dockerd = Dockerd(folder)
    dockerd.start()
    yield dockerd
    dockerd.stop()
    dockerd.sweep_up()


@pytest.fixture
async def dockerd(engine: Dockerd) -> AsyncIterator[Dockerd]:
    """The engine with the image of empty folders, without containers before and after."""
    await load_empty(engine.address)
    engine.calls.unlink(missing_ok=True)
    yield engine
    await engine.clear()


@pytest.fixture
async def bare(tmp_path: Path, engine: Dockerd) -> AsyncIterator[Dockerd]:
    """An engine without NVIDIA's toolkit and without a bridge network. It removes the bridge of the other one."""
    dockerd = Dockerd(tmp_path / "bare", toolkit=False, bridge=False)
    dockerd.folder.mkdir()
    dockerd.start()
    try:
        await load_empty(dockerd.address)
        yield dockerd
        await dockerd.clear()
    finally:
        dockerd.stop()
        engine.stop()
        engine.start()  # it makes its bridge anew


@pytest.fixture
async def controller() -> AsyncIterator[ControllerDouble]:
    async with controller_double() as double:
        yield double
