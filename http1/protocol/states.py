"""The states of the server's side of one connection, their edges, and how long each may last. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class State(StrEnum):
    """Activity of a connection."""

    IDLE = "idle"  # no byte of a request yet
    HEAD = "head"  # a part of a head
    RECEIVING = "receiving"  # the head is complete, the body is not
    ANSWERING = "answering"  # the request is complete, the response is not
    TUNNEL = "tunnel"  # the protocol was switched: bytes both ways
    LINGERING = "lingering"  # the response is complete, and the rest of the request is dropped until the client closes
    CLOSED = "closed"  # what was written may still go out


EDGES: Final = {
    State.IDLE: {State.HEAD, State.RECEIVING, State.ANSWERING, State.CLOSED},
    State.HEAD: {State.RECEIVING, State.ANSWERING, State.CLOSED},
    State.RECEIVING: {State.ANSWERING, State.LINGERING, State.CLOSED},
    State.ANSWERING: {State.IDLE, State.TUNNEL, State.CLOSED},
    State.TUNNEL: {State.CLOSED},
    State.LINGERING: {State.CLOSED},
    State.CLOSED: set[State](),
}

# Names of their own: through the class each costs more than all else that a transition does.
IDLE, HEAD, RECEIVING, ANSWERING, TUNNEL, LINGERING, CLOSED = State


@dataclass(frozen=True, slots=True)
class Progress:
    """Seconds after which a connection is cut.

    Attributes:
        body_s: while a body is read, seconds without a byte of it.
        write_s: while an answer is written, seconds in which the client takes no byte.
        linger_s: seconds that a client has to close, after an answer that came before its request was complete.
    """

    body_s: float = 60.0
    write_s: float = 60.0
    linger_s: float = 2.0


def late(state: State, spent: float, progress: Progress, *, read_paused: bool, write_paused: bool) -> bool:
    """Whether a connection has made no progress for too long.

    `spent`: seconds in the state, or since the last progress in it.
    `read_paused`: the handler takes no more of the body for now.
    `write_paused`: the client takes no more of the answer.
    """
    stalled = write_paused and spent > progress.write_s
    match state:
        case State.RECEIVING:
            return (spent > progress.body_s and not read_paused) or stalled
        case State.ANSWERING | State.TUNNEL:
            return stalled
        case State.LINGERING:
            return spent > progress.linger_s
        case State.CLOSED:
            return spent > progress.write_s
        case _:
            return False  # the admission's
