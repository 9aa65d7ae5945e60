"""`gpuward assets`, from the sources. tests/system/test_packages.py has it from the wheel."""

import os
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from cli.app import app
from support.pages import ROOT

SOURCES = {
    "docker-compose.yml": "docker-compose.yml",
    "install-agent.sh": "deploy/install-agent.sh",
    "systemd/gpuward-agent.service": "deploy/systemd/gpuward-agent.service",
    "systemd/gpuward.sysusers": "deploy/systemd/gpuward.sysusers",
    "prometheus/gpuward-rules.yaml": "deploy/prometheus/gpuward-rules.yaml",
    "grafana/gpuward-cluster.json": "deploy/grafana/gpuward-cluster.json",
    "kubernetes/kustomization.yaml": "deploy/kubernetes/kustomization.yaml",
}


def write(folder: Path, *options: str) -> tuple[int, list[str], str]:
    """Exit code, files that it names by their path in the folder, and messages."""
    done = CliRunner().invoke(app, ["assets", str(folder), *options])
    return done.exit_code, [str(Path(line).relative_to(folder)) for line in done.stdout.splitlines()], done.stderr


def files(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_it_writes_what_operators_need_and_lists_it(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "assets"
    code, listed, _ = write(folder)
    assert code == 0
    assert sorted(listed) == files(folder)
    for name, source in SOURCES.items():
        assert (folder / name).read_bytes() == (ROOT / source).read_bytes()
    assert os.access(folder / "install-agent.sh", os.X_OK)
    assert {Path(name).suffix for name in listed} & {".py", ".pyc"} == set()
    base = yaml.safe_load((folder / "kubernetes" / "kustomization.yaml").read_text())["resources"]
    assert [name for name in listed if "deploy/" in (folder / name).read_text()] == [], "a path of the sources alone"
    assert set(base) <= {file.name for file in (folder / "kubernetes").iterdir()}


def test_files_of_the_same_content_stay_and_lacking_files_are_written(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "install-agent.sh").unlink()
    before = (tmp_path / "docker-compose.yml").stat()
    assert write(tmp_path)[:2] == (0, ["install-agent.sh"])
    assert (tmp_path / "docker-compose.yml").stat().st_ino == before.st_ino


def test_other_content_is_replaced_only_by_force(tmp_path: Path) -> None:
    own, linked = tmp_path / "docker-compose.yml", tmp_path / "linked"
    own.write_text("mine")
    linked.write_text("theirs")
    (tmp_path / "install-agent.sh").symlink_to(linked)
    code, listed, said = write(tmp_path)
    assert (code, listed) == (1, [])
    assert str(own) in said
    assert str(tmp_path / "install-agent.sh") in said
    assert "--force" in said
    assert (own.read_text(), files(tmp_path)) == ("mine", ["docker-compose.yml", "install-agent.sh", "linked"])
    code, listed, _ = write(tmp_path, "--force")
    assert code == 0
    assert {"docker-compose.yml", "install-agent.sh"} <= set(listed)
    assert own.read_bytes() == (ROOT / "docker-compose.yml").read_bytes()
    assert linked.read_text() == "theirs", "a link is replaced, not followed"


@pytest.mark.parametrize("options", [(), ("--force",)], ids=["plain", "force"])
def test_a_folder_as_a_file_and_a_link_as_a_folder_are_refused_before_anything_is_written(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    folder, elsewhere = tmp_path / "assets", tmp_path / "elsewhere"
    (folder / "docker-compose.yml").mkdir(parents=True)
    elsewhere.mkdir()
    (folder / "systemd").symlink_to(elsewhere)
    (folder / "kubernetes").touch()
    code, listed, said = write(folder, *options)
    assert (code, listed) == (1, [])
    for name in ("docker-compose.yml", "systemd", "kubernetes"):
        assert str(folder / name) in said
    assert (files(elsewhere), files(folder)) == ([], ["kubernetes"])


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    assert write(tmp_path / "linked")[0] == 0
    assert "docker-compose.yml" in files(tmp_path / "real")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, _, said = write(tmp_path / "file" / "below")
    assert code == 1
    assert str(tmp_path / "file") in said


@pytest.mark.parametrize("name", ["gpuward-gateway.socket", "gpuward-controller.service"])
def test_units_lie_where_the_script_for_agents_finds_them(tmp_path: Path, name: str) -> None:
    write(tmp_path)
    assert (tmp_path / "systemd" / name).is_file()
    assert '"$here/systemd/gpuward-agent.service"' in (tmp_path / "install-agent.sh").read_text()
