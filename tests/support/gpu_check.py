"""Runs the check of `bench/gpu_kit` from the sources: with this host's GPU, else with a false NVML and tiny models.

Without `.venv-engines` (`make test-engines`) a stand-in takes the place of `transformers serve`.
"""

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from support.nvml.false_driver import library_folder

ROOT = Path(__file__).parents[2]
_ENGINES = ROOT / ".venv-engines"


def argv(results: Path, programs: Path | None, *, real: bool) -> list[str]:
    """The command line; `programs` is an empty folder for the engine's program, None: a stand-in serves."""
    words = [sys.executable, "-P", "-m", "gpu_kit", "--results", str(results)]
    if not real:
        words += ["--false-nvml", str(library_folder()), "--small"]
    if programs is None or not (_ENGINES / ".ready").exists():
        return [*words, "--stand-in"]
    (programs / "transformers").symlink_to(_ENGINES / "bin/transformers")
    return [*words, "--engines", str(programs), "--engine-python", str(_ENGINES / "bin/python")]


def env() -> dict[str, str]:
    """The environment in which Python finds the package."""
    return os.environ | {"PYTHONPATH": str(ROOT / "bench")}


def has_driver() -> bool:
    """Whether NVIDIA's library is here."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def main() -> int:
    """Exit code 1 where something failed. The results are in `build/gpu-check`."""
    with tempfile.TemporaryDirectory() as programs:
        words = argv(ROOT / "build/gpu-check", Path(programs), real=has_driver())
        return subprocess.run([*words, *sys.argv[1:]], env=env(), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
