"""A terminal of some size in which a call of the command line runs, and what stands on it."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from typing import Self

from support.standins.api import KEY, ApiDouble

_CODE = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])|\x1b\][^\x07]*\x07|\x1b.")
_CALL_S = 30.0
_LOOK_S = 0.05


def until(holds: Callable[[], bool], within_s: float = 20.0) -> None:
    """Returns once it holds. Looks are counted, so that a machine that was paused gets its looks all the same."""
    for _ in range(int(within_s / _LOOK_S)):
        if holds():
            return
        time.sleep(_LOOK_S)
    raise AssertionError("it has not come to hold in time")


class Terminal:
    """A call on a terminal. It understands what `cli.terminal` writes: whole pictures from the upper left corner."""

    def __init__(
        self, api: ApiDouble, *words: str, columns: int, lines: int, stderr: int | None = None, **env: str
    ) -> None:
        self._ours, self._theirs = pty.openpty()
        self._before = termios.tcgetattr(self._theirs)
        self._size(columns, lines)
        own = {"GPUWARD_URL": api.url, "GPUWARD_API_KEY": KEY, "HOME": "/nowhere", "TERM": "xterm", "TZ": "UTC"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cli", *words],
            stdin=self._theirs, stdout=self._theirs,
            stderr=self._theirs if stderr is None else stderr,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **own, **env}, start_new_session=True,
        )  # fmt: skip
        self.printed = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if error is not None:
            error.add_note(f"{self.process.args!r}: exit code {self.process.poll()}, last {self.printed[-2000:]!r}")
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._after = termios.tcgetattr(self._theirs)
        os.close(self._theirs)
        self._reader.join(_CALL_S)  # it has all once the other end is closed
        os.close(self._ours)

    def _read(self) -> None:
        while True:
            try:
                part = os.read(self._ours, 65536)
            except OSError:
                return
            if not part:
                return
            self.printed += part

    def _size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns: int, lines: int) -> None:
        self._size(columns, lines)
        self.process.send_signal(28)  # SIGWINCH; the kernel sends it to a terminal's own session

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def end(self) -> int:
        """Waits for the end of the call; returns its exit code."""
        code = self.process.wait(_CALL_S)
        time.sleep(_LOOK_S)  # what it wrote last is on its way
        return code

    def text(self) -> str:
        """The last picture, or what stands below it once the shell's lines are back; without colours."""
        text = self.printed.decode(errors="replace").replace("\r\n", "\n")
        shell = text.rpartition("\x1b[?1049l")[2] if "\x1b[?1049l" in text else None
        picture = text.rpartition("\x1b[H")[2] if shell is None else shell
        return _CODE.sub("", picture)

    def restored(self) -> bool:
        """Whether a closed terminal is as it was: its lines, its cursor, how it wraps, and what is typed is shown."""
        ends = all(
            self.printed.rfind(on) > self.printed.rfind(off)
            for on, off in ((b"\x1b[?1049l", b"\x1b[?1049h"), (b"\x1b[?25h", b"\x1b[?25l"), (b"\x1b[?7h", b"\x1b[?7l"))
        )
        return ends and self._after == self._before
