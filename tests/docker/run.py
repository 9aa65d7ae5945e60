"""Runs the tests of this folder with a Docker engine from Debian's packages: see support/docker/isolated.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.docker.isolated import run_isolated

if __name__ == "__main__":
    sys.exit(run_isolated("tests/docker"))
