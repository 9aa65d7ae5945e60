"""`make test-newer` finds the Python that it runs the unit tests with, and passes where there is none."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
MAKE: Final = shutil.which("make")

pytestmark = pytest.mark.skipif(MAKE is None, reason="make is not installed")


def put(file: Path, line: str) -> Path:
    """Makes a program that runs one line of shell."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{line}\n")
    file.chmod(0o755)
    return file


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder for programs on the PATH, and one for pyenv, both without any Python."""
    put(tmp_path / "bin/make", f'exec {MAKE} "$@"')
    put(tmp_path / "bin/echo", 'echo "$@"')  # make runs it without a shell
    return tmp_path


def make(machine: Path, *words: str) -> str:
    done = subprocess.run(
        [machine / "bin/make", "--silent", *words],
        cwd=ROOT,
        env={"PATH": str(machine / "bin"), "PYENV_ROOT": str(machine / "pyenv"), "HOME": str(machine)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


WORKS: Final = f'exec {sys.executable} "$@"'
BROKEN: Final = "echo 'pyenv: python3.13: command not found' >&2; exit 127"


def test_without_one_the_target_reports_so_and_passes(machine: Path) -> None:
    assert make(machine, "newer-python") == "none"
    assert "SKIPPED" in make(machine, "test-newer")


def test_one_on_the_path_is_found(machine: Path) -> None:
    put(machine / "bin/python3.13", WORKS)
    assert make(machine, "newer-python") == "python3.13"


def test_one_of_pyenv_is_found_behind_a_stand_in_that_runs_nothing(machine: Path) -> None:
    put(machine / "bin/python3.13", BROKEN)
    assert make(machine, "newer-python") == "none"
    installed = put(machine / "pyenv/versions/3.13.1/bin/python3.13", WORKS)
    assert make(machine, "newer-python") == str(installed)


def test_one_without_its_venv_module_does_not_count(machine: Path) -> None:
    put(machine / "bin/python3.13", f'case "$*" in *venv*) exit 1;; esac; {WORKS}')
    assert make(machine, "newer-python") == "none"


def test_a_named_one_comes_first(machine: Path) -> None:
    put(machine / "bin/python3.13", WORKS)
    assert make(machine, "newer-python", f"PYTHON_NEWER={sys.executable}") == sys.executable
