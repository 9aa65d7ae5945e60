"""The states of one request to an engine, and the edges between them. Pure."""

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """How far a request is."""

    CONNECTING = "connecting"  # no byte went to the engine
    SENT = "sent"  # some may have
    ANSWERING = "answering"  # the head of the engine's answer has come
    DONE = "done"  # the answer is complete, or one of ours
    CUT = "cut"  # the caller is gone, or the answer broke off


# Names of their own: through the class each costs more than all else that a transition does.
CONNECTING, SENT, ANSWERING, DONE, CUT = State
EDGES: Final = {
    CONNECTING: {SENT, DONE, CUT},
    SENT: {ANSWERING, DONE, CUT},
    ANSWERING: {DONE, CUT},
    DONE: set[State](),
    CUT: set[State](),
}
