"""One Docker engine and one Compose project for all tests. `make test-compose` prepares them."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.docker.compose import Compose
from support.docker.dockerd import Dockerd


@pytest.fixture(scope="session")
def compose() -> Iterator[Compose]:
    """Its images are loaded, and nothing is built or started."""
    folder = Path(tempfile.mkdtemp(prefix="gpuward-compose-"))
    dockerd = Dockerd(folder, toolkit=False, storage=("overlay2", "vfs"))
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
