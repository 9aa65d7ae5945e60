"""A disk of a few MiB to fill up and free: a tmpfs, where the tests may mount one."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_LIMIT_S = 30
_CHUNK = 2**16


class SmallDisk:
    """A mounted folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Fills it to the last byte."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (_CHUNK, 1):
                try:
                    while file.write(b"\0" * size):
                        pass
                except OSError:
                    continue

    def free(self) -> None:
        """Frees the space."""
        self._ballast.unlink()


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[SmallDisk]:
    """Mounts a disk on a folder while the context lasts; skips the test where mounting is not allowed."""
    folder.mkdir(exist_ok=True)
    options = f"size={mib}m,mode=0755"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True, timeout=_LIMIT_S).returncode:
        pytest.skip("mounting a small disk needs root, and the right to mount")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=_LIMIT_S)
