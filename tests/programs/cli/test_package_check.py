import os
import subprocess
import sys
from pathlib import Path

import pytest

import cli


@pytest.mark.parametrize("content", ["__init__.py", "notes.txt"])  # a package, and a plain folder
def test_a_package_of_another_project_is_refused_before_its_import(tmp_path: Path, content: str) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / content).write_text("raise RuntimeError")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(Path(cli.__file__).parents[1])))}
    line = [sys.executable, "-P", "-c", "from cli.main import main; main()", "--help"]
    done = subprocess.run(line, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    if content == "notes.txt":  # a folder without a package has a lower priority
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode == 1
        assert f"the package 'agent' is found in {tmp_path / 'agent'}" in done.stderr
        assert "Traceback" not in done.stderr


def test_packages_in_the_working_folder_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "controller").mkdir()
    (tmp_path / "controller" / "__init__.py").write_text("raise RuntimeError")
    line = [sys.executable, "-P", "-m", "cli", "version"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
