"""The wheel of these sources, and an environment that has it and none of its dependencies."""

import os
import subprocess
import sys
import venv
from pathlib import Path

from support.pages import ROOT

_NO_CONFIG = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
_LIMIT_S = 120


def python(*argv: str | Path, cwd: Path) -> None:
    """Runs this Python, without an index for pip."""
    done = subprocess.run(
        [sys.executable, *argv],
        cwd=cwd,
        env={**os.environ, **_NO_CONFIG},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def build_wheel(folder: Path) -> Path:
    python("-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(home: Path, *wheels: Path) -> None:
    """Installs wheels into an environment, which is made where it is missing."""
    if not home.exists():
        venv.create(home)
    python("-m", "pip", "--python", home / "bin" / "python", "install", "-qq", "--no-deps", *wheels, cwd=home)
