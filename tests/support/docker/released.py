"""A release of these sources. A registry on loopback has the base image, and the packages were fetched before."""

import re
import subprocess
import sys
from pathlib import Path

from support.docker.compose import KEPT, PYTHON_BASE, Compose
from support.docker.hub import Hub
from support.pages import ROOT

LIMIT_S = 300.0


class Release:
    """Its files are in `folder`, in the Compose project's own."""

    def __init__(self, compose: Compose, hub: Hub) -> None:
        self.folder = compose.project / "dist"
        self._compose = compose
        self._hub = hub
        self.base = ""  # digest of the base image
        self.made = (-1, "")  # exit code and output of the first time

    def push_base(self) -> None:
        """Puts the base image into the registry. It keeps the name that it had here, and the registry's digest."""
        name = f"{self._hub.address}/library/{PYTHON_BASE}"
        said = self._compose.shell(f"docker tag {PYTHON_BASE} {name}\ndocker push {name}\ndocker rmi {name}")
        (self.base,) = re.findall(r"digest: (sha256:[0-9a-f]{64})", said)

    def make(self, *options: str, folder: Path | None = None) -> tuple[int, str]:
        """Runs the script of `make release`; exit code and output."""
        (wheels,) = KEPT.glob("wheels-*")
        argv = [sys.executable, str(ROOT / "deploy" / "release.py"), "--folder", str(folder or self.folder)]
        argv += ["--registry", self._hub.url, "--wheels", str(wheels), *options]
        done = subprocess.run(
            argv,
            env=self._compose.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        return done.returncode, done.stdout
