"""One Docker engine, one Compose project and one release for all tests. `make test-compose` prepares them."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.docker.compose import Compose
from support.docker.dockerd import Dockerd
from support.docker.hub import Hub
from support.docker.released import Release


@pytest.fixture(scope="session")
def hub() -> Iterator[Hub]:
    """A registry without images."""
    with tempfile.TemporaryDirectory(prefix="gpuward-hub-") as folder:
        made = Hub(Path(folder, "hub"))
        made.start()
        yield made
        made.stop()


@pytest.fixture(scope="session")
def compose(hub: Hub) -> Iterator[Compose]:
    """Its images are loaded, and nothing is built or started."""
    folder = Path(tempfile.mkdtemp(prefix="gpuward-compose-"))
    dockerd = Dockerd(folder, toolkit=False, storage=("overlay2", "vfs"), hub=hub.url)
    dockerd.start()
    project = Compose(dockerd, folder)
    try:
        project.load_images()
        project.copy_project()
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
