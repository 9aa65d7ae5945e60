"""How requests to each revision end while one is rolled out, as the leader is reported. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from controller.live.demand import RevisionCount
from controller.live.endpoints import RolloutRoute


@dataclass(slots=True)
class _Counted:
    attempt: int
    requests: int = 0
    errors: int = 0
    reported: bool = False


class RevisionOutcomes:
    """The counts of the rollouts under way. Where none is, nothing is counted."""

    def __init__(self) -> None:
        self._counted: dict[tuple[str, str], _Counted] = {}

    def note(self, uid: str, rollout: RolloutRoute, revision: str, *, requests: int = 0, errors: int = 0) -> None:
        """Adds requests that an engine of the revision has answered or broken off, and those that count as errors."""
        counted = self._counted.get((uid, revision))
        if counted is None or counted.attempt != rollout.attempt:
            counted = self._counted[uid, revision] = _Counted(rollout.attempt)
        counted.requests += requests
        counted.errors += errors
        counted.reported = False

    def report(self, under_way: Mapping[str, RolloutRoute]) -> list[RevisionCount]:
        """Changes since the last report. Rollouts that are not under way (by uid) are forgotten."""
        self._counted = {
            key: counted
            for key, counted in self._counted.items()
            if (rollout := under_way.get(key[0])) is not None and rollout.attempt == counted.attempt
        }
        changed = [
            RevisionCount(uid, int(revision), counted.attempt, counted.requests, counted.errors)
            for (uid, revision), counted in self._counted.items()
            if not counted.reported
        ]
        for counted in self._counted.values():
            counted.reported = True
        return changed

    def everything_again(self) -> None:
        """The next report has all counts: an earlier report may be lost."""
        for counted in self._counted.values():
            counted.reported = False
