"""What a container may read beside its model: where links lead, but never the host's own folders."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.containers.docker_engine import DockerEngine
from agent.containers.model_folders import ClosedPlaces, linked_folders, refused_model
from agent.containers.runtime import ContainerRuntime
from agent.errors import SpawnError
from agent.processes.engine_accounts import EngineAccounts
from agent.processes.folders import InstanceFolders
from agent.state.journal import Journal
from agent.state.process_records import ProcessRecord
from schemas.wire import ContainerOrder
from support.standins.controller import start_order


def test_links_that_lead_nowhere_are_left_out(tmp_path: Path) -> None:
    model, blobs, closed = (tmp_path / name for name in ("model", "blobs", "closed"))
    for folder in (model, blobs, closed):
        folder.mkdir()
    (blobs / "weights").write_text("w")
    (closed / "weights").write_text("w")
    (model / "weights").symlink_to(blobs / "weights")
    (model / "round").symlink_to(model / "trip")
    (model / "trip").symlink_to(model / "round")
    (model / "away").symlink_to(tmp_path / "nothing")
    (model / "name").symlink_to("x" * 250 + "/" + "y" * 300)
    assert linked_folders((str(model),)) == (str(blobs),)
    assert linked_folders((str(tmp_path / "nothing"),)) == ()


@pytest.mark.parametrize("place", ["/etc/hostname", "/proc/self/status", "/usr/bin/env"])
def test_links_into_the_hosts_own_folders_are_left_out(tmp_path: Path, place: str) -> None:
    (tmp_path / "config.json").symlink_to(place)
    assert linked_folders((str(tmp_path),)) == ()


@pytest.mark.parametrize("model", ["/", "/etc", "/run", "/proc/1", "/usr/../etc", "/var/run/docker.sock"])
def test_no_container_gets_a_folder_of_the_host_itself(model: str) -> None:
    if model == "/var/run/docker.sock" and os.path.realpath("/var/run") != "/run":
        pytest.skip("no usual /var/run here")
    assert refused_model(("/models/m", model)) == model
    assert refused_model(("/models/m", "/srv/etc")) == ""


@pytest.mark.parametrize(
    "place", ["agent", "agent/journal", "alias", "", "elsewhere", "elsewhere/tls", "docker.sock", "agent/../agent"]
)
def test_no_container_sees_credentials_or_dockers_socket(tmp_path: Path, place: str) -> None:
    closed = lay_out(tmp_path)
    asked = os.path.normpath(tmp_path / place) if place == "" else f"{tmp_path}/{place}"
    assert closed.first_of(("/models/m", asked)) == asked


@pytest.mark.parametrize("place", ["models/m", "agent-2", "agent/cache/m", "nothing"])
def test_what_lies_beside_credentials_is_open(tmp_path: Path, place: str) -> None:
    assert lay_out(tmp_path).first_of((f"{tmp_path}/{place}",)) == ""


def test_links_into_closed_places_are_left_out(tmp_path: Path) -> None:
    closed = lay_out(tmp_path)
    (tmp_path / "agent" / "journal").write_text("credential")
    (tmp_path / "models" / "m" / "config.json").symlink_to(tmp_path / "agent" / "journal")
    assert linked_folders((f"{tmp_path}/models/m",), closed) == ()


def lay_out(folder: Path) -> ClosedPlaces:
    """An agent's data folder with a cache within, a controller's, and Docker's socket."""
    for name in ("agent/cache/m", "agent-2", "models/m", "elsewhere/tls"):
        (folder / name).mkdir(parents=True)
    (folder / "elsewhere" / "client.env").touch()
    (folder / "docker.sock").touch()
    (folder / "alias").symlink_to(folder / "agent")
    return ClosedPlaces((folder / "agent", folder / "docker.sock"), folder / "agent" / "cache")


@pytest.mark.parametrize("given", [{"models": ("{}",)}, {"models": ("{}/journal",)}, {"volumes": {"{}": "/x:ro"}}])
async def test_a_container_with_the_agents_folder_does_not_start(tmp_path: Path, given: dict[str, Any]) -> None:
    """Docker is not asked for anything before."""
    own = str(tmp_path / "agent")
    filled = json.loads(json.dumps(given).replace("{}", own))
    order = replace(start_order("run"), container=ContainerOrder(image="a/b:1", **filled))
    record = ProcessRecord(instance="i", epoch=1, rank=0, state="starting", boot_id="b")
    journal = Journal(Path(own))
    try:
        folders = InstanceFolders(Path(own))
        runtime = ContainerRuntime(
            DockerEngine(f"unix://{tmp_path}/docker.sock"), journal, folders, tmp_path / "cache", None,
            EngineAccounts(None, journal, folders), lambda _uuid: None,
        )  # fmt: skip
        with pytest.raises(SpawnError, match="data folder of Gpuward"):
            await runtime.start(record, order, lambda *_: None, given_up=asyncio.Event(), report=lambda _: None)
    finally:
        journal.close()
