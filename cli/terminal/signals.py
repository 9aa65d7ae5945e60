"""Turns signals that end a process into `SystemExit`, so that its cleanup runs."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """The first signal ends the block by `SystemExit`; later signals do not interrupt its cleanup. Main thread only."""

    def end_once(number: int, frame: FrameType | None) -> None:
        for ending in ENDING:  # a hang-up often comes twice: from the kernel and from the shell
            signal.signal(ending, signal.SIG_IGN)
        end(number, frame)

    handled = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    before = [(number, signal.signal(number, end_once)) for number in handled]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def end(number: int, _frame: FrameType | None) -> None:
    """A handler that exits with the code of a process that the signal has ended."""
    raise SystemExit(128 + number)
