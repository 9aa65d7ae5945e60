"""One Docker engine, one Compose project and one release for all tests. `make test-compose` prepares them."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.built_wheel import python
from support.docker.compose import Compose
from support.docker.dockerd import Dockerd
from support.docker.hub import Hub
from support.docker.released import Release
from support.pages import ROOT


@pytest.fixture(scope="session")
def hub() -> Iterator[Hub]:
    """A registry without images."""
    with tempfile.TemporaryDirectory(prefix="gpuward-hub-") as folder:
        made = Hub(Path(folder, "hub"))
        made.start()
        yield made
        made.stop()


@pytest.fixture(scope="session")
def compose(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    """Its images are loaded, its folder has the sources of the sdist, and nothing is built or started."""
    folder = Path(tempfile.mkdtemp(prefix="gpuward-compose-"))
    dockerd = Dockerd(folder, toolkit=False, storage=("overlay2", "vfs"), hub=hub.url)
    dockerd.start()
    project = Compose(dockerd, folder)
    try:
        project.load_images()
        build = tmp_path_factory.mktemp("sdist")
        python("-m", "hatchling", "build", "-t", "sdist", "-d", build, cwd=ROOT)
        (sdist,) = build.glob("*.tar.gz")
        project.unpack(sdist)
        yield project
        project.shell("docker compose down --volumes --timeout 20")
    finally:
        dockerd.stop()
        dockerd.sweep_up()


@pytest.fixture(scope="session")
def release(compose: Compose, hub: Hub) -> Release:
    """What `make release` makes of these sources, with a base image that is in the registry."""
    made = Release(compose, hub)
    made.push_base()
    made.made = made.make()
    return made
