"""The state of a wait."""

from enum import Enum


class WaitState(Enum):
    """Whether a wait is over."""

    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
