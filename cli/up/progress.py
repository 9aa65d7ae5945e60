"""Progress of a start: a spinner and a line per step on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cli.figures import printable
from cli.output import console

if TYPE_CHECKING:  # slow to import
    from rich.status import Status


class Progress:
    """Tells which step is under way, and how long each took."""

    def __init__(self) -> None:
        self._console = console()
        self._status: Status | None = None

    @contextmanager
    def step(self, doing: str) -> Iterator[None]:
        """A step. Where it fails, its line stays as the last one."""
        begun = time.monotonic()
        if not self._console.is_terminal:
            self.say(f"{doing} ...")
            yield
        else:
            self._status = self._console.status(doing)
            try:
                with self._status:
                    yield
            finally:
                self._status = None
        self.say(f"{doing}: done in {time.monotonic() - begun:.1f} s")

    def detail(self, line: str) -> None:
        """What happens within the present step."""
        if self._status is not None:
            self._status.update(printable(line.strip()))
        else:
            self.say(f"  {printable(line.strip())}")

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, soft_wrap=True)
