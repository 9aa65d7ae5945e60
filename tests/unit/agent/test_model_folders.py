"""What a container may read beside its model: where links lead, but never the host's own folders."""

import os
from pathlib import Path

import pytest

from agent.containers.model_folders import linked_folders, refused_model


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
