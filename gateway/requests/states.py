"""The states of one request to a model, the edges between them, and how long each may last. Pure."""

from enum import StrEnum
from typing import Final

UPLOAD_LIMIT_S: Final = 300.0
LONG_READ_LIMIT_S: Final = 120.0  # until a long body is read, with those that are read in turns with it
CLIENT_STALL_S: Final = 60.0  # after which a client that reads nothing counts as gone
HELD_LIMIT_S: Final = 5.0  # to read a 503 that is kept
WAIT_LIMIT_S: Final = 5.0  # the routes' own limit is shorter
_CONNECT_LIMIT_S: Final = 10.0  # the pool's own limit is shorter


class State(StrEnum):
    """How far a request is. Each state but the last two has a deadline."""

    RECEIVING = "receiving"  # its key is checked, its body is read
    ADMITTED = "admitted"  # complete, and its model is known
    WAITING = "waiting"  # no replica can take it: the routes are read again, or it is in the queue
    CONNECTING = "connecting"  # to a replica's agent
    SENT = "sent"  # some bytes may have reached an engine
    ANSWERING = "answering"  # a part of the engine's answer is on its way to the client
    DONE = "done"  # answered, by an engine or by an error of ours
    CUT = "cut"  # the client is gone, or the answer broke off


# Names of their own: through the class each costs more than the rest of a transition.
RECEIVING, ADMITTED, WAITING, CONNECTING, SENT, ANSWERING, DONE, CUT = State
EDGES: Final = {
    State.RECEIVING: {State.ADMITTED, State.DONE, State.CUT},
    State.ADMITTED: {State.WAITING, State.CONNECTING, State.SENT, State.DONE, State.CUT},
    State.WAITING: {State.WAITING, State.CONNECTING, State.SENT, State.DONE, State.CUT},
    State.CONNECTING: {State.SENT, State.WAITING, State.CONNECTING, State.DONE, State.CUT},
    State.SENT: {State.ANSWERING, State.WAITING, State.CONNECTING, State.SENT, State.DONE, State.CUT},
    State.ANSWERING: {State.DONE, State.CUT},
    State.DONE: set[State](),
    State.CUT: set[State](),
}
# The other states begin with a deadline of the replica's limits, or of the queue.
LIMITS_S: Final = {
    State.RECEIVING: UPLOAD_LIMIT_S,
    State.ADMITTED: WAIT_LIMIT_S,
    State.WAITING: WAIT_LIMIT_S,
    State.CONNECTING: _CONNECT_LIMIT_S,
}
OVER: Final = (State.DONE, State.CUT)
