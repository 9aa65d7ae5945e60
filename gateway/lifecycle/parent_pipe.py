"""A pipe by which a process observes the holder of its other end: it lives, was replaced, or has ended."""

import ctypes
import os
import select
import signal
from enum import StrEnum
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


class Holder(StrEnum):
    """Whether a process still holds the writing end."""

    LIVES = "lives"
    REPLACED = "replaced"  # it wrote something
    ENDED = "ended"  # every copy of the writing end is closed


def holder_of(reading_end: int) -> Holder:
    """The state of the pipe. Nothing is read, so that several processes may call it."""
    poll = select.poll()
    poll.register(reading_end, select.POLLIN)
    events = sum(event for _, event in poll.poll(0))
    if events & select.POLLHUP:
        return Holder.ENDED
    return Holder.REPLACED if events & select.POLLIN else Holder.LIVES


def die_with(parent: int) -> None:
    """Has the kernel kill this process when its parent ends, also while its event loop hangs.

    Where the parent has ended already, this process ends.
    """
    _on_parents_death(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Undoes `die_with`."""
    _on_parents_death(0)


def _on_parents_death(number: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
