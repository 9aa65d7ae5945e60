"""The rollout of a new revision under `update: rolling`: its stored record and its input.

Times are of the database's clock.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class RolloutState(StrEnum):
    """How far a rollout is. A pause is stored next to the state."""

    CANARY = "canary"  # the new revision gets a share of the requests
    PROGRESSING = "progressing"
    COMPLETE = "complete"
    FAILED = "failed"  # the new revision does not become ready
    ABORTED = "aborted"  # for its errors: the old revision replaces it again


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """The leader's record of a deployment's rollout."""

    revision: int
    stable: int | None = None  # the last revision of which all replicas ran, to which a rollout falls back
    state: RolloutState = RolloutState.PROGRESSING
    attempt: int = 1  # rises with each rollout and each retry; gateways count requests by it
    seen: int = 0  # number of the last user request (`asked`) that was handled
    reason: str = ""
    message: str = ""
    trying_since: datetime | None = None  # since when starts of the revision make no replica available
    canary_since: datetime | None = None  # since when the replicas of the present canary are available
    progressed: int = 0  # the highest number of available replicas of the revision so far
    holds: bool = False  # a missing replica gets the stable revision
    weight: int | None = None  # percent of requests for the revision; None: by load
    updated: int = 0  # replicas of the revision
    available: int = 0  # updated replicas that ran long enough
    kept: int = 0  # replicas to keep up while hosts are full: those ever placed, without the surge; 0: unknown

    @property
    def fallback(self) -> int | None:
        """The other revision to which it can return; None if there is none."""
        return None if self.stable == self.revision else self.stable


@dataclass(frozen=True, slots=True)
class RequestOutcomes:
    """The gateways' counts of the revision in this attempt."""

    requests: int = 0  # those that reached its engines and are finished
    errors: int = 0  # requests that ended with a 5xx of the engine or with its end
    silent: tuple[str, ...] = ()  # names of gateways that do not report, so the counts may be too low


@dataclass(frozen=True, slots=True)
class RevisionCount:
    """One gateway's counts of one revision in an attempt."""

    uid: str  # of the deployment
    revision: int
    attempt: int
    requests: int
    errors: int


@dataclass(frozen=True, slots=True)
class RolloutSnapshot:
    """A deployment's rollout as of one snapshot."""

    record: RolloutRecord | None = None  # None: none is stored yet
    paused: bool = False  # by a user
    asked: int = 0  # number of user requests to pause or resume
    outcomes: RequestOutcomes = field(default_factory=RequestOutcomes)
