"""One `gpuward up` for all tests: two hosts with one simulated GPU each, and every engine that is installed."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from engines.table import ENGINES
from support.database.postgres import reachable_folder
from support.processes.up_process import Up

_GPU = {"model": "NVIDIA H100 80GB HBM3", "memory": "80GiB", "count": 1}


@pytest.fixture(scope="session")
def shared() -> Iterator[Path]:
    """A folder that engines can read, which run as accounts of their own where root tests."""
    with reachable_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def models(shared: Path) -> Iterator[Path]:
    """New folders for models, one after the other."""
    return (_made(shared / f"model-{number}") for number in itertools.count())


def _made(folder: Path) -> Path:
    folder.mkdir(mode=0o755)
    return folder


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Iterator[Up]:
    hosts = tmp_path_factory.mktemp("hosts") / "hosts.yaml"
    hosts.write_text(yaml.safe_dump({"workers": [{"name": f"gpu-{number}", "gpus": [_GPU]} for number in (1, 2)]}))
    with pytest.MonkeyPatch.context() as patch, reachable_folder() as folder:
        # Of each environment only the server itself: the agent finds it as on a GPU host.
        patch.setenv("PATH", f"{_links(_made(shared / 'bin'))}{os.pathsep}{os.environ['PATH']}")
        with Up(folder, "--simulate", str(hosts), "--port", "0") as running:
            running.wait_until_ready(120)
            yield running
            code, _ = running.stop(limit_s=60)
            assert (code, running.leftovers()) == (0, [])


def _links(folder: Path) -> Path:
    for engine in ENGINES:
        if engine.installed:
            (folder / engine.program.name).symlink_to(engine.program)
    return folder
