"""A wall clock that tests set wrong, under running processes too: a small library, compiled and preloaded."""

import mmap
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_suffix(".c")
_COMPILE_S = 60


class WrongClock:
    """`env` makes a process (and its children) follow this clock."""

    def __init__(self, library: Path, file: Path, page: mmap.mmap) -> None:
        self.env = {"LD_PRELOAD": str(library), "WRONG_CLOCK": str(file)}
        self._page = page

    def set(self, off_s: int) -> None:
        """Sets how many seconds it is off, at once for all processes."""
        self._page[:8] = struct.pack("q", off_s)


@contextmanager
def wrong_clock(folder: Path) -> Iterator[WrongClock]:
    """Compiles it into a new folder that every account may enter; skips the test without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("a wrong clock needs a C compiler")
    folder.mkdir()
    folder.chmod(0o755)
    library, file = folder / "wrong_clock.so", folder / "wrong_clock"
    argv = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE)]
    subprocess.run(argv, check=True, timeout=_COMPILE_S)
    file.write_bytes(bytes(8))
    for path in (library, file):
        path.chmod(0o755)
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 8) as page:
        yield WrongClock(library, file, page)
