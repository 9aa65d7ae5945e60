"""Time that a leader has not read: its predecessors stored since when an instance is low, and samples reach less far.

Minutes are examined for it, since a backlog with use or a gap may have arrived while no leader judged. Pure.
"""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from controller.decide.policies.actions import is_judged, known_low_since
from controller.domain.policies import GpuClaim, PolicyFacts, WatchedInstance
from controller.store.telemetry.low_minutes import Stretch

_MINUTE_S: Final = 60.0


class Unseen(NamedTuple):
    """A stretch of time, and for whose claims what is found in it counts."""

    instance: WatchedInstance
    devices: Collection[str]
    stretch: Stretch


def oldest_known(facts: PolicyFacts) -> dict[str, float]:
    """Since when a GPU is low by a stored verdict, by GPU; GPUs of which none knows are missing."""
    found: dict[str, float] = {}
    for instance in facts.instances:
        low_since = _low_since(facts, instance)
        if low_since is not None:
            found |= {c.device: min(low_since, found.get(c.device, low_since)) for c in instance.claims}
    return found


def unseen(facts: PolicyFacts, read: Mapping[str, float]) -> list[Unseen]:
    """What verdicts know and samples no longer show.

    Args:
        facts: a deployment.
        read: by GPU, since when its samples were read just now.
    """
    found: list[Unseen] = []
    for instance in facts.instances:
        low_since = _low_since(facts, instance)
        claims = [c for c in instance.claims if c.device in read]
        if low_since is None or facts.policy is None or not claims:
            continue
        rule = facts.policy.spec
        for together in [instance.claims] if rule.gpus == "mean" else [[c] for c in claims]:
            until = min(read[c.device] for c in together if c.device in read)
            parts = [_part(instance, c) for c in together]
            stretch = Stretch(parts, low_since, until, rule.min_gpu_utilization)
            if low_since < until:
                found.append(Unseen(instance, [c.device for c in together], stretch))
    return found


def whole_minute(at: float) -> float:
    """The begin of the minute of that time."""
    return at // _MINUTE_S * _MINUTE_S


def minutes_of(seconds: float) -> float:
    """The number of minutes in so many seconds; none in a negative number."""
    return max(seconds, 0.0) / _MINUTE_S


def _low_since(facts: PolicyFacts, instance: WatchedInstance) -> float | None:
    if facts.policy is None or facts.deleted or not is_judged(instance):
        return None
    return known_low_since(facts.policy, instance)


def _part(instance: WatchedInstance, claim: GpuClaim) -> tuple[str, str]:
    return claim.device, "" if claim.exclusive else instance.id
