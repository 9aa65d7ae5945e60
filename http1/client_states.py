"""The states of a client's connection, and the edges between them. Pure."""

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """What a connection does."""

    REST = "rest"  # open, nothing under way: it can take a request
    SENDING = "sending"  # a request is not complete, and no answer has begun
    AWAITING = "awaiting"  # the request is complete, the response's head is not
    RECEIVING = "receiving"  # the response's head is complete; the request may still be sent
    TUNNEL = "tunnel"  # the protocol was switched: bytes both ways
    CLOSED = "closed"


EDGES: Final = {
    State.REST: {State.SENDING, State.AWAITING, State.CLOSED},
    State.SENDING: {State.AWAITING, State.RECEIVING, State.TUNNEL, State.CLOSED},
    State.AWAITING: {State.RECEIVING, State.TUNNEL, State.CLOSED},
    State.RECEIVING: {State.REST, State.CLOSED},
    State.TUNNEL: {State.CLOSED},
    State.CLOSED: set[State](),
}
# Names of their own: through the class each costs more than all else that a transition does.
REST, SENDING, AWAITING, RECEIVING, TUNNEL, CLOSED = State
