"""Signals that end a process, turned into an exit, so that what is to be done at the end is done."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within it the first signal ends the block by `SystemExit`; later ones do not break off what its end does.

    It is for the main thread, as handlers of signals are.
    """

    def end_once(number: int, frame: FrameType | None) -> None:
        for one in ENDING:  # a hang-up often comes twice: from the kernel and from the shell
            signal.signal(one, signal.SIG_IGN)
        end(number, frame)

    before = [(one, signal.signal(one, end_once)) for one in ENDING if signal.getsignal(one) is not signal.SIG_IGN]
    try:
        yield
    finally:
        for one, handler in before:
            signal.signal(one, handler)


def end(number: int, _frame: FrameType | None) -> None:
    """A handler that ends the process as one that the signal has ended.

    Raises:
        SystemExit: always.
    """
    raise SystemExit(128 + number)
