"""Shows the progress of a start: a spinner and a line per step on a terminal, else only lines."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.status import Status

from cli.text.formatting import printable

_PIPED_WIDTH: Final = 10_000


class Progress:
    """Prints the current step, and how long each step took."""

    def __init__(self) -> None:
        width = None if sys.stdout.isatty() else _PIPED_WIDTH  # so that no line of a file is broken
        self._console = Console(width=width, highlight=False, soft_wrap=False, emoji=False, markup=False)
        self._status: Status | None = None

    @contextmanager
    def step(self, doing: str) -> Iterator[None]:
        """Runs a step. If it fails, its line stays the last one."""
        started = time.monotonic()
        if not self._console.is_terminal:
            self.print(f"{doing} ...")
            yield
        else:
            self._status = self._console.status(doing)
            try:
                with self._status:
                    yield
            finally:
                self._status = None
        self.print(f"{doing}: done in {time.monotonic() - started:.1f} s")

    def detail(self, line: str) -> None:
        if self._status is not None:
            self._status.update(printable(line.strip()))
        else:
            self.print(f"  {printable(line.strip())}")

    def print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)
