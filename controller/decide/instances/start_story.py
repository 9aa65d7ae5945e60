"""How long each phase of a start took: data for the events, and words."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from controller.domain.instances import InstanceFacts
from controller.domain.phases import InstancePhase

TOTAL: Final = "total"
_ORDER: Final[tuple[str, ...]] = ("analyzing", "pending", "scheduled", "pulling", "fetching", "starting")
_LEAST_TOLD_S: Final = 0.05
_MINUTE_S: Final = 60
_TENTHS_BELOW_S: Final = 10


def start_durations(instance: InstanceFacts, now: datetime) -> dict[str, float]:
    """Seconds of each phase of this start, in order, with the one that it is in, and their `total`."""
    spent = {phase: instance.start_phases[phase] for phase in _ORDER if phase in instance.start_phases}
    begun = instance.start_phase_since or instance.phase_since
    present = _present(instance)
    if present is not None:
        spent[present] = spent.get(present, 0.0) + max(0.0, (now - begun).total_seconds())
    told: dict[str, float] = {phase: round(spent[phase], 3) for phase in _ORDER if phase in spent}
    return {**told, TOTAL: round(sum(spent.values()), 3)}


def _present(instance: InstanceFacts) -> str | None:
    if instance.phase is InstancePhase.STARTING and instance.reason in _ORDER:
        return instance.reason
    return instance.phase.value if instance.phase.value in _ORDER else None


def story(instance: str, durations: Mapping[str, float]) -> str:
    """The start in words; phases that took no time are left out."""
    parts = [f"{phase} {_words(durations[phase])}" for phase in _ORDER if durations.get(phase, 0) >= _LEAST_TOLD_S]
    return f"{instance} runs after {_words(durations[TOTAL])}" + (f": {', '.join(parts)}" if parts else "")


def _words(seconds: float) -> str:
    if seconds < _TENTHS_BELOW_S:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), _MINUTE_S)
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
