"""Whether a container has certainly ended, while Docker does not say how it is. Pure."""

from dataclasses import dataclass
from typing import Final, Literal

AWAY_S: Final = 10.0  # a Docker that starts again may still tell how it ended
ERRORS_S: Final = 60.0  # one that answers, with errors, is more likely to

FirstProcess = Literal["runs", "gone", "unknown"]


@dataclass(frozen=True, slots=True)
class NoWord:
    """What is known of a container without a word of Docker's that says how it is.

    Attributes:
        answers: Docker answers, with an error or with what makes no sense; else it is silent.
        process: the first process of the container, known by pid and start. `gone`: it ran, and /proc, which shows all
            processes of this host, has it no more. `unknown`: anything else.
        signalled_by_pid: this agent has signalled it by its pid while it ran, in place of Docker.
        earlier_boot: the container was started before the host's last start, and has no first process since.
        for_s: how long all of this has been so, in seconds.
    """

    answers: bool
    process: FirstProcess
    signalled_by_pid: bool = False
    earlier_boot: bool = False
    for_s: float = 0.0


def has_ended(known: NoWord) -> bool:
    """Whether nothing of it can run any more.

    The first process waits for all others before it becomes a zombie. Docker starts none again: it has no restart
    policy. What is unknown never counts as an end: its claims stay.
    """
    if known.process == "runs":
        return False
    if known.earlier_boot:
        return not known.answers or known.for_s >= ERRORS_S
    if known.process == "unknown":
        return False
    return known.signalled_by_pid or known.for_s >= (ERRORS_S if known.answers else AWAY_S)
