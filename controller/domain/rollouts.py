"""The rollout of a new revision under `update: rolling`: what is stored about it, and what is known. Frozen.

Moments are of the database's clock.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class RolloutState(StrEnum):
    """How far a rollout is. A pause is stored next to the state."""

    CANARY = "canary"  # the new revision gets a share of the requests
    PROGRESSING = "progressing"
    COMPLETE = "complete"
    FAILED = "failed"  # the new revision does not become ready: no further tries
    ABORTED = "aborted"  # for its errors: the old revision takes its place again


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """What the leader stores about a deployment's rollout.

    Attributes:
        revision: that is rolled out.
        stable: the last one of which all replicas ran, to which a rollout falls back; None if there is none yet.
        attempt: rises with each rollout and each retry; gateways count requests by it.
        seen: number of the last request of a user (`asked`) that was acted on.
        trying_since: since when replicas of the revision try to become available, without progress; None: none tries.
        canary_since: since when the canary's replicas are available; None if they are not, or the canary is over.
        progressed: the most replicas of the revision that were available.
        holds: a replica that is missing gets the stable revision.
        weight: percent of the requests for the revision; None: by least load over all replicas.
        updated: replicas of the revision.
        available: of these, such as ran long enough.
        kept: the replicas that it keeps up where hosts are full: those that had a place when it began, and of those
            that got one since all but the surge; 0: not known yet.
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
        """The other revision to which it can go back; None if there is none."""
        return None if self.stable == self.revision else self.stable


@dataclass(frozen=True, slots=True)
class RequestOutcomes:
    """What gateways have counted of the revision in this attempt.

    Attributes:
        requests: that reached its engines and were answered, or broke off.
        errors: of these, such as ended with a 5xx of the engine or with its death.
        silent: names of gateways that do not report, so that more may be unknown.
    """

    requests: int = 0
    errors: int = 0
    silent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RevisionCount:
    """What one gateway has counted of one revision's requests in an attempt."""

    uid: str  # of the deployment
    revision: int
    attempt: int
    requests: int
    errors: int


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """A deployment's rollout as it was read.

    Attributes:
        record: None: the leader has stored nothing yet.
        paused: by a user.
        asked: number of users' requests to pause or resume.
        outcomes: of the revision's requests.
    """

    record: RolloutRecord | None = None
    paused: bool = False
    asked: int = 0
    outcomes: RequestOutcomes = field(default_factory=RequestOutcomes)
