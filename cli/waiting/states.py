"""What a wait is for, and its state."""

from enum import Enum, StrEnum


class Goal(StrEnum):
    """What a wait is for."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    STOPPED = "stopped"
    GONE = "gone"


class WaitState(Enum):
    """Whether a wait is over."""

    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
