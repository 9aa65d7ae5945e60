"""What follows when a request to one replica does not end in that replica's answer. Pure: one table.

A request never runs twice. It goes to another replica only where it cannot have reached an engine, or where the engine
itself answered 503 before anything else. Everything after the first byte to the engine is final.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final


class Happening(Enum):
    """What happened to the request at one replica."""

    NOT_CONNECTED = auto()  # the agent's address refused the connection, or none came about in time
    NO_FILES = auto()  # this process may open no more files
    AGENT_REFUSED = auto()  # the agent's own answer, before a byte went to the engine
    ENGINE_BUSY = auto()  # the engine answered 503 before anything else
    BROKE_OFF = auto()  # the connection ended before the answer began; the engine may have seen the request
    AGENT_GONE = auto()  # the same, without a word of the agent: it ended itself, or its host is out of reach
    SILENT = auto()  # nothing arrived in time
    BROKE_OFF_MIDWAY = auto()  # a part of the answer has reached the client
    SILENT_MIDWAY = auto()


@dataclass(frozen=True, slots=True)
class TryAnother:
    """Another replica may get the request, and this one gets no requests for a while."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The client gets an error, and no other replica sees the request.

    Attributes:
        status: the response's; None if it has started: then an error event and a closed connection show the error.
        code: the error's code.
    """

    status: int | None
    code: str


Verdict = TryAnother | Settled
ENGINE_DIED: Final = "engine_died"
TIMED_OUT: Final = "timed_out"
OVERLOADED: Final = "overloaded"
VERDICTS: Final[Mapping[Happening, Verdict]] = {
    Happening.NOT_CONNECTED: TryAnother(),
    Happening.NO_FILES: Settled(503, OVERLOADED),
    Happening.AGENT_REFUSED: TryAnother(),
    Happening.ENGINE_BUSY: TryAnother(),
    Happening.BROKE_OFF: Settled(502, ENGINE_DIED),
    Happening.AGENT_GONE: Settled(502, ENGINE_DIED),
    Happening.SILENT: Settled(504, TIMED_OUT),
    Happening.BROKE_OFF_MIDWAY: Settled(None, ENGINE_DIED),
    Happening.SILENT_MIDWAY: Settled(None, TIMED_OUT),
}
MIDWAY: Final = frozenset({Happening.BROKE_OFF_MIDWAY, Happening.SILENT_MIDWAY})
# Ends that an engine's crash may have caused, so that the request is suspected. `AGENT_GONE` is none of them: a running
# agent names the end of an engine. Without that, the agent or its host has ended, for which no request is suspected.
ENDS: Final = frozenset({Happening.BROKE_OFF, Happening.BROKE_OFF_MIDWAY})
# The engine's doing, or taken for it: these count against its revision.
OF_ENGINE: Final = MIDWAY | {Happening.ENGINE_BUSY, Happening.BROKE_OFF, Happening.AGENT_GONE, Happening.SILENT}
# Agents before this rule marked also this answer as a refusal, though the engine may have seen the request.
_AFTER_THE_FIRST_BYTE: Final = frozenset({"engine_unreachable"})


def of_agents_answer(*, refusal: str | None, outcome: str | None, status: int) -> Happening | None:
    """What an agent's answer reports; None: it is the engine's own, to be passed on.

    Args:
        refusal: the agent's mark that no byte went to the engine; no engine can set it.
        outcome: the agent's mark of an end after the first byte.
        status: the answer's.
    """
    if refusal is not None:
        return Happening.BROKE_OFF if refusal in _AFTER_THE_FIRST_BYTE else Happening.AGENT_REFUSED
    if outcome is not None:
        return Happening.SILENT if outcome == TIMED_OUT else Happening.BROKE_OFF
    return Happening.ENGINE_BUSY if status == 503 else None  # noqa: PLR2004 - the one status that invites another try
