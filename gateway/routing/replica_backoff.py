"""Which replicas are left alone for now, because their last request could not be handed over. Pure."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

FIRST_S: Final = 1.0
LONGEST_S: Final = 30.0


@dataclass(slots=True)
class _Suspect:
    """`until`: when it may be tried. `trial`: a request was let through since and has not ended."""

    refusals: int
    until: float
    trial: bool = False


class ReplicaBackoff:
    """Replicas that refused. Each may be tried by one request after 1 s, then 2, 4, ... 30 s; one answer ends that.

    Attributes:
        suspects: those that are left alone, or were tried since and have not answered yet.
    """

    def __init__(self) -> None:
        self.suspects: dict[str, _Suspect] = {}

    def waits_until(self, instance: str) -> float:
        """When it may be tried next, in the caller's seconds; 0: at any time."""
        suspect = self.suspects.get(instance)
        return suspect.until if suspect is not None else 0.0

    def picked(self, instance: str, now: float) -> None:
        """A request goes there. If it is a suspect, others keep away until that request is answered or refused."""
        suspect = self.suspects.get(instance)
        if suspect is not None:
            suspect.trial, suspect.until = True, now + _delay_s(suspect.refusals)

    def refused(self, instance: str, now: float) -> None:
        """It refused a request. Requests that were already under way when it began to refuse count once."""
        suspect = self.suspects.get(instance)
        if suspect is None:
            self.suspects[instance] = _Suspect(1, now + _delay_s(1))
        elif suspect.trial:
            suspect.refusals, suspect.trial = suspect.refusals + 1, False
            suspect.until = now + _delay_s(suspect.refusals)

    def answered(self, instance: str) -> None:
        """It answered a request."""
        self.suspects.pop(instance, None)

    def keep(self, instances: Collection[str]) -> None:
        """Forgets all others."""
        self.suspects = {one: suspect for one, suspect in self.suspects.items() if one in instances}


def _delay_s(refusals: int) -> float:
    return min(FIRST_S * 2.0 ** min(refusals - 1, 16), LONGEST_S)
