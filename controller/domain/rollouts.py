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
    """The leader's record of a deployment's rollout.

    Attributes:
        stable: the last revision of which all replicas ran, to which a rollout falls back; None if there is none yet.
        attempt: rises with each rollout and each retry; gateways count requests by it.
        seen: number of the last user request (`asked`) that was handled.
        trying_since: since when replicas of the revision start without becoming available; None: none starts.
        canary_since: since when the canary's replicas are available; None if they are not or the canary is over.
        progressed: the highest number of available replicas of the revision so far.
        holds: a missing replica gets the stable revision.
        weight: percent of the requests for the revision; None: by least load over all replicas.
        updated: replicas of the revision.
        available: updated replicas that ran long enough.
        kept: replicas that it keeps up while hosts are full: those placed when it started, and those placed since,
            without the surge; 0: not known yet.
    """

    revision: int
    stable: int | None = None
    state: RolloutState = RolloutState.PROGRESSING
    attempt: int = 1
    seen: int = 0
    reason: str = ""
    message: str = ""
    trying_since: datetime | None = None
    canary_since: datetime | None = None
    progressed: int = 0
    holds: bool = False
    weight: int | None = None
    updated: int = 0
    available: int = 0
    kept: int = 0

    @property
    def fallback(self) -> int | None:
        """The other revision to which it can return; None if there is none."""
        return None if self.stable == self.revision else self.stable


@dataclass(frozen=True, slots=True)
class RequestOutcomes:
    """The gateways' counts of the revision in this attempt.

    Attributes:
        requests: those that reached its engines and are finished.
        errors: requests that ended with a 5xx of the engine or with its end.
        silent: names of gateways that do not report, so the counts may be too low.
    """

    requests: int = 0
    errors: int = 0
    silent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RevisionCount:
    """One gateway's counts of one revision in an attempt."""

    uid: str  # of the deployment
    revision: int
    attempt: int
    requests: int
    errors: int


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """A deployment's rollout as of one snapshot."""

    record: RolloutRecord | None = None  # None: none is stored yet
    paused: bool = False  # by a user
    asked: int = 0  # number of user requests to pause or resume
    outcomes: RequestOutcomes = field(default_factory=RequestOutcomes)
