"""Fixtures that run the command line in this process against the double of the API."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.app import app
from cli.transport import connection
from cli.waiting import wait
from support.standins.api import KEY, ApiDouble, serving

Gpuward = Callable[..., Result]


@pytest.fixture
def api() -> Iterator[ApiDouble]:
    with serving(ApiDouble()) as double:
        yield double


@pytest.fixture
def gpuward(api: ApiDouble, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gpuward:
    """Calls the command line with a valid key and without the data folders of the user and of this host."""
    monkeypatch.setattr(wait, "POLL_S", 0.01)
    monkeypatch.setattr(connection, "_SYSTEM_DATA_DIR", tmp_path / "system")  # a controller may run on this host
    env = {"GPUWARD_URL": api.url, "GPUWARD_API_KEY": KEY, "HOME": str(tmp_path), "XDG_DATA_HOME": None}
    env["XDG_CONFIG_HOME"] = None

    def call(*words: str, stdin: str | None = None, **more_env: str | None) -> Result:
        return CliRunner().invoke(app, list(words), input=stdin, env={**env, **more_env})

    return call
