"""Packages of other projects in front of Gpuward's: in a folder of the path, and as a distribution next to it."""

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import editables
import pytest

import cli
from cli.own_packages import MARK, PACKAGES
from support.built_wheel import build_wheel, install, python
from support.pages import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def home(tmp_path: Path, wheel: Path) -> Path:
    """An environment with Gpuward and none of its dependencies: what is shadowed is found before they are imported."""
    install(tmp_path / "env", wheel)
    return tmp_path / "env"


@pytest.fixture(scope="module")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `home`, with these sources in place of a copy."""
    folder = tmp_path_factory.mktemp("editable")
    python("-c", f"import hatchling.build; hatchling.build.build_editable({str(folder)!r})", cwd=ROOT)
    install(folder / "env", *folder.glob("*.whl"))
    (site,) = (folder / "env" / "lib").glob("python3*/site-packages")
    shutil.copytree(Path(editables.__file__).parent, site / "editables")
    return folder / "env"


def run(home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [home / "bin" / "gpuward", "--help"],
        cwd=home,
        env={"PATH": "/usr/bin:/bin", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def other_distribution(folder: Path, package: str) -> Path:
    """A wheel of another project that has a package of this name."""
    info = "acme_agents-1.2.dist-info"
    files = {
        f"{package}/__init__.py": "raise RuntimeError\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: acme-agents\nVersion: 1.2\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digest = {name: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()) for name, text in files.items()}
    rows = [f"{name},sha256={digest[name].decode().rstrip('=')},{len(text)}\n" for name, text in files.items()]
    made = folder / "acme_agents-1.2-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in (*files.items(), (f"{info}/RECORD", "".join([*rows, f"{info}/RECORD,,\n"]))):
            archive.writestr(name, text)
    return made


def assert_refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1, done.stderr
    for part in parts:
        assert part in done.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_a_folder_in_front_is_named_with_the_fix(tmp_path: Path, home: Path, package: str) -> None:
    front = tmp_path / "front"
    (front / package).mkdir(parents=True)
    file = front / package / "__init__.py"
    file.write_text("raise RuntimeError\n")
    done = run(home, PYTHONPATH=str(front))
    assert_refused(done, f"{package!r}", str(file), f"remove {front} from PYTHONPATH")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_distribution_that_overwrites_a_package_is_named(tmp_path: Path, home: Path, package: str) -> None:
    install(home, other_distribution(tmp_path, package))
    (site,) = (home / "lib").glob("python3*/site-packages")
    done = run(home)
    file = site / package / "__init__.py"
    assert_refused(done, f"{package!r}", str(file), "acme-agents 1.2", "environment of its own")
    file.unlink()  # as its removal does
    shutil.rmtree(site / package / "__pycache__", ignore_errors=True)
    assert_refused(run(home), f"{package!r}", str(file), "environment of its own")


def test_a_distribution_of_another_folder_of_the_path_is_named(tmp_path: Path, home: Path) -> None:
    front = tmp_path / "front"
    front.mkdir()
    with zipfile.ZipFile(other_distribution(tmp_path, "agent")) as archive:
        archive.extractall(front)
    (site,) = (home / "lib").glob("python3*/site-packages")
    (site / "a_front.pth").write_text(f"import sys; sys.path.insert(0, {str(front)!r})\n")
    assert_refused(
        run(home), "'agent'", str(front / "agent" / "__init__.py"), "acme-agents 1.2", "environment of its own"
    )


def test_nothing_is_said_of_folders_that_are_no_packages(tmp_path: Path, home: Path) -> None:
    front = tmp_path / "front"
    for package in PACKAGES:
        (front / package).mkdir(parents=True)
        (front / package / "notes.txt").touch()
    done = run(home, PYTHONPATH=str(front))
    assert "shadowed" not in done.stderr
    assert "No module named 'typer'" in done.stderr, "it went on to its dependencies"


@pytest.mark.parametrize("package", ["agent", "cli"])
def test_a_plain_folder_in_front_of_an_editable_installation_is_named_with_the_fix(
    tmp_path: Path, editable: Path, package: str
) -> None:
    folder = tmp_path / "front" / package
    folder.mkdir(parents=True)
    done = run(editable, PYTHONPATH=str(folder.parent))
    assert_refused(done, f"{package!r}", str(folder), f"remove {folder.parent} from PYTHONPATH")


def test_an_installation_without_the_command_line_is_named_incomplete(home: Path) -> None:
    (site,) = (home / "lib").glob("python3*/site-packages")
    shutil.rmtree(site / "cli")
    assert_refused(run(home), "incomplete")


def test_packages_in_the_working_folder_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "controller").mkdir()
    (tmp_path / "controller" / "__init__.py").write_text("raise RuntimeError")
    line = [sys.executable, "-P", "-m", "cli", "version"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_module_is_checked_as_the_program_is(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "__init__.py").write_text("raise RuntimeError")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(Path(cli.__file__).parents[1])))}
    line = [sys.executable, "-P", "-m", "cli", "--help"]
    done = subprocess.run(line, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert_refused(done, "'agent'", str(tmp_path / "agent" / "__init__.py"))


def test_each_package_of_the_wheel_is_checked_and_marked() -> None:
    packages = {file.parent.name for file in ROOT.glob("*/__init__.py")} - {"tests"}
    assert packages == set(PACKAGES)
    for package in packages:
        assert MARK in (ROOT / package / "__init__.py").read_bytes()
