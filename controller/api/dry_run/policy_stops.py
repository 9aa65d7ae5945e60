"""The instances that policies would stop at once if manifests were applied, also of other deployments.

Any controller answers by the rows and samples by which the leader's next step decides (`reconcilers/policies.py`). The
latest samples show that most deployments are in use; the complete window is read only for the rest. Missing data, and
data beyond a plan's bound, is unknown. Writes nothing.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from controller.api.apply import Documents
from controller.api.dry_run.allowances import DryRunCaller
from controller.api.dry_run.policy_effects import PolicyEffects, effective_after
from controller.decide.policies.actions import is_judged
from controller.decide.policies.foresight import NOTHING, Forecast, changed_snapshot, foresee, stops_more
from controller.domain.policies import EffectivePolicy, PolicySnapshot
from controller.domain.spec_changes import change_between
from controller.domain.telemetry.utilization import ClockLeaps
from controller.leader.policy_samples import Telemetry, start_of_minute
from controller.runtime.tasks import TimeSlice
from controller.store.core.database import Database
from controller.store.policies.observe import list_concerned, observe_policies, read_leaps
from controller.store.telemetry.samples import read_history
from schemas.api.plan import PolicyStop, PolicyStops
from schemas.manifest.deployment import DeploymentSpec
from schemas.wire import SAMPLE_S

MOST_NAMED: Final = 100  # of each kind; the rest are counted
_DEPLOYMENTS_AT_ONCE: Final = 100  # read in one snapshot
_GPU_S_AT_ONCE: Final = 2_000 * SAMPLE_S  # parsing the samples of one read blocks the event loop
_RECENT_S: Final = 120.0
JUDGE_S: Final = 10.0  # including the wait for other plans; the plan itself has 30 s
_LATE: Final = "judging policies took too long; plan fewer deployments or policies at a time, or try again later"
_UNREAD: Final = Forecast(message="its window holds more samples than one plan reads", unknown=True)


async def policy_stops(
    database: Database, documents: Documents, policies: PolicyEffects, caller: DryRunCaller
) -> PolicyStops:
    """The stops at once because of an apply of these checked documents. `policies`: their effect on policies."""
    change = _Change(dict(documents.deployments.values()), policies)
    async with database.snapshot() as connection:
        names = await list_concerned(connection, change.specs, change.changed, default=change.of_default)
        leaps = await read_leaps(connection)
    if not names:
        return PolicyStops()
    stops: list[PolicyStop] = []
    late = list(names)
    left = caller.samples
    limit = asyncio.timeout(JUDGE_S)
    try:
        async with limit, caller.judging:
            while late:
                async with database.snapshot() as connection:
                    reader = _Reader(connection, leaps, left)
                    stops += await _stops_of(reader, change, late[:_DEPLOYMENTS_AT_ONCE])
                    left = reader.left
                del late[:_DEPLOYMENTS_AT_ONCE]
    except TimeoutError:
        if not limit.expired():  # the database's own
            raise
    return _view([*stops, *(PolicyStop(deployment=names[uid], action="unknown", message=_LATE) for uid in late)])


@dataclass(frozen=True, slots=True)
class _Change:
    """The changes by an apply: new specs of deployments by name, and policies."""

    specs: Mapping[str, DeploymentSpec]
    policies: PolicyEffects

    @property
    def changed(self) -> set[str]:
        return {name for name, change in self.policies.changes.items() if change != "unchanged"}

    @property
    def of_default(self) -> bool:
        """Whether the default policy changes, or another policy becomes the default."""
        both = (self.policies.before, self.policies.after)
        return any(name in known and known[name].spec.default for name in self.changed for known in both)

    def after(self, snapshot: PolicySnapshot) -> PolicySnapshot | None:
        """The deployment after the apply; None: it and its policy do not change."""
        spec = self.specs.get(snapshot.name, snapshot.spec)
        changes = snapshot.name in self.specs and change_between(snapshot.spec, spec) != "unchanged"
        policy = self._policy(spec, snapshot.generation + changes)
        if changes:
            return changed_snapshot(snapshot, spec, policy)
        return None if _same(snapshot.policy, policy) else replace(snapshot, policy=policy)

    def _policy(self, spec: DeploymentSpec, generation: int) -> EffectivePolicy | None:
        planned = effective_after(spec, self.policies.after)
        if planned is None or planned.origin == "inline":
            return None if planned is None else EffectivePolicy("", None, generation, planned.spec)
        known = self.policies.after[planned.name]
        return EffectivePolicy(planned.name, known.uid, known.generation, planned.spec)


def _same(one: EffectivePolicy | None, other: EffectivePolicy | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.uid, one.generation) == (other.uid, other.generation)


async def _stops_of(reader: "_Reader", change: _Change, uids: Sequence[str]) -> list[PolicyStop]:
    observed = await observe_policies(reader.connection, uids)
    today = {uid: observed[uid] for uid in uids if uid in observed}
    planned = {uid: after for uid, snapshot in today.items() if (after := change.after(snapshot)) is not None}
    forecasts: dict[str, Forecast] = {}
    for recent_s in (0.0, _RECENT_S, None):  # from the cheapest reading to the most expensive one
        forecasts = await reader.foresee(list(planned.values()), recent_s)
        planned = {uid: snapshot for uid, snapshot in planned.items() if forecasts[uid].matters}
    acting = [today[uid] for uid in planned if forecasts[uid].limit is not None]
    before = await reader.foresee(acting)
    return [
        _stop(snapshot, forecasts[uid])
        for uid, snapshot in planned.items()
        if forecasts[uid].unknown or stops_more(forecasts[uid], before[uid])
    ]


def _stop(snapshot: PolicySnapshot, forecast: Forecast) -> PolicyStop:
    policy = snapshot.policy
    name = "" if policy is None else policy.name
    if policy is None or forecast.limit is None:
        return PolicyStop(deployment=snapshot.name, policy=name, action="unknown", message=forecast.message)
    return PolicyStop(
        deployment=snapshot.name,
        policy=name,
        action="scale_down" if policy.spec.action == "scale_down" else "stop",
        stops=forecast.stops,
        replicas=forecast.limit.max_replicas,
        message=forecast.message,
    )


def _view(stops: Sequence[PolicyStop]) -> PolicyStops:
    actions = ("stop", "scale_down", "unknown")
    by_action = {action: [stop for stop in stops if stop.action == action] for action in actions}
    counts = {action: len(same) for action, same in by_action.items()}
    return PolicyStops(**counts, items=[stop for same in by_action.values() for stop in same[:MOST_NAMED]])


@dataclass(slots=True)
class _Reader:
    """Judges deployments by the samples of one snapshot. It reads at most `left` samples, plus the last chunk."""

    connection: Any
    leaps: ClockLeaps
    left: int

    async def foresee(
        self, deployments: Sequence[PolicySnapshot], recent_s: float | None = None
    ) -> dict[str, Forecast]:
        """The effect of the next step on each deployment, by uid.

        `recent_s`: judges by the samples of the latest seconds; None: by those of the policies' windows.
        """
        telemetry, turn = Telemetry(), TimeSlice()
        telemetry.leaps = self.leaps
        judged = [deployment for deployment in deployments if deployment.policy is not None]
        for deployment in judged:
            telemetry.watch(deployment)
        if recent_s != 0:
            await self._read(telemetry, judged, recent_s)
        forecasts = dict.fromkeys((deployment.uid for deployment in deployments), NOTHING)
        for deployment in judged:
            await turn.yield_if_over()
            if recent_s is None and telemetry.missing(deployment.uid):
                forecasts[deployment.uid] = _UNREAD
            else:
                use = {i.id: telemetry.use_of(i) for i in deployment.instances if is_judged(i)}
                forecasts[deployment.uid] = foresee(deployment, use)
        return forecasts

    async def _read(self, telemetry: Telemetry, deployments: Sequence[PolicySnapshot], recent_s: float | None) -> None:
        """Reads samples of the GPUs of these deployments, the shortest windows first."""
        uids, now = [one.uid for one in deployments], max((one.now for one in deployments), default=0.0)
        needs: dict[str, float] = {}
        for uid in uids:
            for gpu, seconds in telemetry.missing(uid).items():
                needs[gpu] = max(seconds if recent_s is None else recent_s, needs.get(gpu, 0.0))
        chunk: list[str] = []
        for gpu in sorted(needs, key=lambda gpu: needs[gpu]):
            if chunk and (len(chunk) + 1) * needs[gpu] > _GPU_S_AT_ONCE:
                await self._read_chunk(telemetry, uids, chunk, needs[chunk[-1]], now)
                chunk = []
            chunk.append(gpu)
        if chunk:
            await self._read_chunk(telemetry, uids, chunk, needs[chunk[-1]], now)

    async def _read_chunk(
        self, telemetry: Telemetry, uids: Collection[str], gpus: Collection[str], reach_s: float, now: float
    ) -> None:
        if self.left > 0:
            samples = await read_history(self.connection, gpus, start_of_minute(now - reach_s))
            self.left -= len(samples)
            telemetry.put_past(uids, gpus, reach_s, samples)
