"""A pipe that tells a process about the one which holds its other end: it lives, was replaced, or has ended."""

import select
from enum import StrEnum


class Holder(StrEnum):
    """The state of the process that holds the writing end."""

    LIVES = "lives"
    REPLACED = "replaced"  # it wrote something
    ENDED = "ended"  # every copy of the writing end is closed


def holder_of(reading_end: int) -> Holder:
    """What the pipe says now. Nothing is read, so that several processes may ask."""
    poll = select.poll()
    poll.register(reading_end, select.POLLIN)
    events = sum(event for _, event in poll.poll(0))
    if events & select.POLLHUP:
        return Holder.ENDED
    return Holder.REPLACED if events & select.POLLIN else Holder.LIVES
