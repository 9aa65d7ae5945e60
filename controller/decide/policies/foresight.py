"""The instances that a policy would stop at its next step, if a deployment or its policy were changed. Pure.

It is the step's own decision, on a snapshot as the change would leave it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from controller.decide.policies.actions import Judged, actions_on, decide_policy, judge_all
from controller.domain.instances import Intent
from controller.domain.policies import EffectivePolicy, Limit, PolicySnapshot
from controller.domain.telemetry.utilization import InstanceUse, Verdict
from controller.domain.wanted import AUTOSCALER, kept_number
from schemas.manifest.deployment import DeploymentSpec

# Of an unknown verdict: with more data it could be idle. The other reasons are known not to be.
_LACKS_DATA: Final = frozenset({
    "no_telemetry", "coverage", "stale", "no_process_utilization", "requests_unknown"
})  # fmt: skip
_CLEARED: Final = frozenset({"user", "policy"})  # limits that end with a change of the spec


class Forecast(NamedTuple):
    """The effect of one step on the replicas of a deployment."""

    limit: Limit | None = None  # the new limit, if it is known
    stops: int = 0  # number of instances that would stop
    message: str = ""  # the reason; empty where no instance would stop
    unknown: bool = False  # data is missing without which the effect is unknown

    @property
    def matters(self) -> bool:
        """Whether an instance would or may stop."""
        return self.limit is not None or self.unknown


NOTHING: Final = Forecast()


def changed_snapshot(snapshot: PolicySnapshot, spec: DeploymentSpec, policy: EffectivePolicy | None) -> PolicySnapshot:
    """The snapshot after an apply of another spec: the old limits have ended."""
    intents = tuple(intent for intent in snapshot.intents if intent.source not in _CLEARED)
    number = kept_number(snapshot.spec, spec, snapshot.intents)
    if number is not None:
        intents = (Intent(AUTOSCALER, number, "scaled", min_replicas=number),)
    return replace(snapshot, spec=spec, generation=snapshot.generation + 1, policy=policy, intents=intents)


def foresee(snapshot: PolicySnapshot, uses: Mapping[str, InstanceUse]) -> Forecast:
    """The effect of the policy's next step.

    `uses`: the telemetry of every judged instance. Where it lacks older samples, stops are unknown; that an instance
    would not stop is certain.
    """
    if snapshot.policy is None or snapshot.deleted:
        return NOTHING
    for action in decide_policy(snapshot, uses).actions:
        if action.limit is not None:
            return Forecast(action.limit, len(action.instances), action.message)
    judged = judge_all(snapshot, snapshot.policy, uses)
    lacking = [instance.verdict for instance in judged if _lacks_data(instance.verdict)]
    if not lacking:
        return NOTHING
    if_idle = [_as_idle(instance) if _lacks_data(instance.verdict) else instance for instance in judged]
    limits = any(action.limit is not None for action in actions_on(snapshot, snapshot.policy, if_idle))
    return Forecast(message=lacking[0].message, unknown=True) if limits else NOTHING


def stops_more(planned: Forecast, today: Forecast) -> bool:
    """Whether the planned step leaves fewer replicas than the next step does today."""
    if planned.limit is None or today.limit is None:
        return planned.limit is not None
    return planned.limit.max_replicas < today.limit.max_replicas


def _lacks_data(verdict: Verdict) -> bool:
    return verdict.verdict == "unknown" and verdict.reason in _LACKS_DATA


def _as_idle(judged: Judged) -> Judged:
    return replace(judged, verdict=replace(judged.verdict, verdict="idle"))
