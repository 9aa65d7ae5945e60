"""The alternate screen of a terminal. The shell's lines are back when it ends."""

import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Final, Self

from cli.terminal.signals import ENDING, end

_BEGIN: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"  # alternate screen, no cursor, no wrapped lines, empty
_END: Final = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_TO_END_OF_LINE: Final = "\x1b[K"
_TO_END: Final = "\x1b[J"


def fit_for_screens() -> bool:
    """True where stdout is a terminal with escape sequences."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class Screen:
    """Draws until its end, which restores the terminal, as SIGTERM, a hang-up and Ctrl-Z do. `keys`: without echo."""

    def __init__(self, *, keys: bool = False) -> None:
        self._keys = keys
        self._typing: list[Any] | None = None  # the settings of stdin before
        self._handlers: dict[int, Any] = {}
        self._shown: tuple[tuple[int, int], Sequence[str]] | None = None
        self._left: Sequence[str] = ()

    def __enter__(self) -> Self:
        sys.stdout.flush()
        for number in ENDING:
            self._handlers[number] = signal.signal(number, end)
        self._handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._suspend)
        try:
            self._begin()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._restore()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._left:
            _write("\n".join([*self._left, ""]))

    @property
    def size(self) -> tuple[int, int]:
        size = shutil.get_terminal_size()
        return size.columns, size.lines

    def draw(self, lines: Sequence[str]) -> None:
        """Shows these lines, unless they are shown already."""
        shown = (self.size, list(lines))
        if shown != self._shown:
            self._shown = shown
            picture = f"{_TO_END_OF_LINE}\r\n".join(lines[: self.size[1]])
            _write(f"{_HOME}{picture}{_TO_END_OF_LINE}{_TO_END}")

    def leave_behind(self, lines: Sequence[str]) -> None:
        """These lines are printed once the shell's lines are back."""
        self._left = list(lines)

    def _begin(self) -> None:
        if self._keys:
            self._typing = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin, termios.TCSANOW)
        self._shown = None
        _write(_BEGIN)

    def _restore(self) -> None:
        if self._typing is not None:
            termios.tcsetattr(sys.stdin, termios.TCSANOW, self._typing)
            self._typing = None
        _write(_END)

    def _suspend(self, number: int, _frame: FrameType | None) -> None:
        """Ctrl-Z: the shell gets its terminal, and this process continues here later."""
        self._restore()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, self._suspend)
        self._begin()


def _write(text: str) -> None:
    # not by stdout's buffer, which refuses a signal handler that interrupts its writing
    data = text.encode(sys.stdout.encoding, "replace")
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]
