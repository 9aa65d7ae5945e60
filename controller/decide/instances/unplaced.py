"""Which pending instances have found no place, although the end of another instance may give them one."""

from typing import Final

from controller.domain.instances import DeploymentFacts, InstanceFacts
from controller.domain.phases import InstancePhase
from schemas.placement_reasons import HELD_BY_OTHERS, NEVER_FREED

NO_PLACE_AFTER_S: Final = 10.0  # pending for so long, it found no place, whatever is being freed


def left_s(facts: DeploymentFacts, instance: InstanceFacts, least_s: float) -> float:
    """Seconds until it has been in its phase for so long; not above 0: it has."""
    return least_s - max((facts.now - instance.phase_since).total_seconds(), 0.0)


def finds_no_place(facts: DeploymentFacts, instance: InstanceFacts) -> bool:
    """Whether there is no place for it now, by placement's own word or for a while.

    One that has failed waits for its next try instead.
    """
    if instance.phase is not InstancePhase.PENDING or instance.failures or instance.reason in NEVER_FREED:
        return False
    return instance.reason in HELD_BY_OTHERS or left_s(facts, instance, NO_PLACE_AFTER_S) <= 0


def is_looked_for(facts: DeploymentFacts, instance: InstanceFacts) -> bool:
    """Whether a place for it is still being looked for or freed, so that nothing need give it one."""
    if instance.phase is InstancePhase.ANALYZING:
        return True
    known = instance.reason in NEVER_FREED or instance.failures or finds_no_place(facts, instance)
    return instance.phase is InstancePhase.PENDING and not known
