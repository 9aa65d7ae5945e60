"""The step of a policy: verdicts to store, and stop, scale_down or notify for idle instances. Pure.

Each action happens once per idle episode. An instance's episode starts with an idle verdict and ends with a busy
verdict or a new epoch; an unknown verdict does not end it. The action taken in it is stored with the verdict. Another
policy takes its own action.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from controller.decide.policies.idle_verdict import judge
from controller.decide.policies.windows import end_of, requests_in, window_of
from controller.domain.phases import HOLDS_CLAIMS, InstancePhase
from controller.domain.policies import (
    EffectivePolicy,
    Limit,
    NewAction,
    PolicyEffects,
    PolicySnapshot,
    StoredVerdict,
    VerdictWrite,
    WatchedInstance,
)
from controller.domain.telemetry.utilization import GpuUse, InstanceUse, Verdict
from controller.domain.wanted import POLICY, is_put_to_sleep, wanted_replicas
from schemas.manifest.policy import UtilizationPolicy
from schemas.printing import first_of

_ENDING: Final = frozenset({InstancePhase.STOPPING, InstancePhase.REPLACED})
_JUDGED: Final = HOLDS_CLAIMS - _ENDING
_LIMITING: Final = ("stop", "scale_down")
# The user's start came before the instance had stopped: a new window starts at the time behind this.
_RESUMED: Final = "resumed:"
_SLOTS: Final = 60
_MAX_GAPS: Final = 16
_MAX_GPUS: Final = 64  # keeps an event small; further GPUs are counted


@dataclass(frozen=True, slots=True)
class Judged:
    """An instance with its verdict. `acted`: the action taken earlier in this idle episode."""

    instance: WatchedInstance
    use: InstanceUse
    verdict: Verdict
    acted: str


def decide_policy(snapshot: PolicySnapshot, uses: Mapping[str, InstanceUse]) -> PolicyEffects:
    end_actions = snapshot.open_actions and not _policy_limits(snapshot)
    stored = {i.id for i in snapshot.instances if i.stored is not None}
    if snapshot.policy is None or snapshot.deleted:
        return PolicyEffects(
            forget=tuple(sorted(stored)), end_actions=snapshot.open_actions and (snapshot.deleted or end_actions)
        )
    judged = judge_all(snapshot, snapshot.policy, uses)
    actions = actions_on(snapshot, snapshot.policy, judged)
    done = {name for action in actions for name, _ in action.instances}
    label = _label(snapshot.policy)
    writes = [
        write for j in judged
        if (write := _write(snapshot, snapshot.policy, j, label if j.instance.id in done else j.acted)) is not None
    ]  # fmt: skip
    forget = stored - {j.instance.id for j in judged}
    verdicts = tuple(j.verdict.verdict for j in judged)
    return PolicyEffects(verdicts, tuple(writes), tuple(sorted(forget)), tuple(actions), end_actions)


def judge_all(snapshot: PolicySnapshot, policy: EffectivePolicy, uses: Mapping[str, InstanceUse]) -> list[Judged]:
    """The verdict of the policy on every instance that it judges. `uses`: the telemetry of each."""
    resumed = snapshot.open_actions and all(i.source != POLICY for i in snapshot.intents)
    return [_judged(policy, i, uses[i.id], snapshot.now, resumed=resumed) for i in snapshot.instances if is_judged(i)]


def _policy_limits(snapshot: PolicySnapshot) -> bool:
    """Whether a policy's intent keeps replicas away that are wanted otherwise: only then it frees something."""
    limits = [i.max_replicas for i in snapshot.intents if i.source == POLICY]
    others = [i for i in snapshot.intents if i.source != POLICY]
    if is_put_to_sleep(snapshot.spec, snapshot.intents):
        return True  # the autoscaler then wants no replica, because of it; a request ends both
    return bool(limits) and min(limits) < wanted_replicas(snapshot.spec, others)


def judge_again(
    policy: EffectivePolicy, instance: WatchedInstance, use: InstanceUse, now: float
) -> tuple[Verdict, bool]:
    """The verdict on one instance, and whether it needs a step. Cheap: called for each arriving sample.

    A step is needed if the verdict differs from the stored one: every action starts with such a difference.
    """
    judged = _judged(policy, instance, use, now)
    return judged.verdict, _row(policy, judged, judged.acted) != instance.stored


def is_judged(instance: WatchedInstance) -> bool:
    """Whether it holds GPUs and is not ending."""
    return instance.phase in _JUDGED


def known_low_since(policy: EffectivePolicy, instance: WatchedInstance) -> float | None:
    """Since when it was low by the stored verdict, if that is of the same epoch and policy."""
    stored = instance.stored
    if stored is None or stored.epoch != instance.epoch:
        return None
    same = (stored.policy_uid, stored.policy_generation) == (policy.uid, policy.generation)
    return stored.low_since if same else None


def _judged(
    policy: EffectivePolicy, instance: WatchedInstance, use: InstanceUse, now: float, *, resumed: bool = False
) -> Judged:
    """`resumed`: its user has just started the instance that the policy stopped."""
    stored = instance.stored
    acted = ""
    if stored is not None and (stored.epoch, stored.policy_uid) == (instance.epoch, policy.uid):
        acted = f"{_RESUMED}{now:.3f}" if resumed and stored.acted in _LIMITING else stored.acted
    since = float(acted.removeprefix(_RESUMED)) if acted.startswith(_RESUMED) else None
    verdict = judge(policy.spec, use, now, known_low_since(policy, instance), since)
    return Judged(instance, use, verdict, acted if verdict.verdict != "busy" else "")


def _write(snapshot: PolicySnapshot, policy: EffectivePolicy, judged: Judged, acted: str) -> VerdictWrite | None:
    """The verdict to store, if it differs from the stored one."""
    if _row(policy, judged, acted) == judged.instance.stored:
        return None
    idle = judged.verdict.verdict == "idle"
    evidence = evidence_of(policy, {judged.instance.id: judged.use}, snapshot.now) if idle else {}
    return VerdictWrite(judged.instance.id, judged.instance.epoch, policy, judged.verdict, evidence, acted)


def _row(policy: EffectivePolicy, judged: Judged, acted: str) -> StoredVerdict:
    verdict, spec = judged.verdict, policy.spec
    return StoredVerdict(
        judged.instance.epoch,
        policy.name,
        policy.uid,
        policy.generation,
        spec.action,
        spec.dry_run,
        verdict.verdict,
        verdict.reason,
        verdict.message,
        verdict.low_since,
        verdict.due_at,
        acted,
    )


def _label(policy: EffectivePolicy) -> str:
    return f"dry_run:{policy.spec.action}" if policy.spec.dry_run else policy.spec.action


def actions_on(snapshot: PolicySnapshot, policy: EffectivePolicy, judged: Sequence[Judged]) -> list[NewAction]:
    """The policy's actions on these verdicts of all instances that it judges."""
    idle = [j for j in judged if j.verdict.verdict == "idle"]
    fresh = [j for j in idle if j.acted != _label(policy)]
    if not fresh or snapshot.awake_for_s > 0:  # a deployment that an operator keeps awake runs without requests
        return []
    match policy.spec.action:
        case "notify":
            return [_action(snapshot, policy, [judgement], None) for judgement in fresh]
        case "stop":
            if not _all_idle(snapshot, idle):
                return []
            return [_action(snapshot, policy, idle, Limit(0, ()))]
        case "scale_down":
            victims = _victims(snapshot, judged, fresh)
            if not victims:
                return []
            # The number that holds GPUs, not the wanted one: pending replicas would take the freed GPUs.
            limit = Limit(_holding(snapshot) - len(victims), tuple(v.instance.id for v in victims))
            return [_action(snapshot, policy, victims, limit)]


def _all_idle(snapshot: PolicySnapshot, idle: Sequence[Judged]) -> bool:
    """Whether every wanted replica runs and is idle, holds no GPU, or has ended for good."""
    known = sum(i.phase not in _ENDING for i in snapshot.instances)
    return sum(map(is_judged, snapshot.instances)) == len(idle) and known >= snapshot.wanted > 0


def _holding(snapshot: PolicySnapshot) -> int:
    """Number of replicas that hold GPUs and stay. A substitute counts for both."""
    return sum(is_judged(i) and not i.substituted for i in snapshot.instances)


def _victims(snapshot: PolicySnapshot, judged: Sequence[Judged], idle: Sequence[Judged]) -> list[Judged]:
    """The idle replicas to stop, longest idle first. One running replica stays, and earlier victims must have ended.

    A replica with a substitute leaves anyway, and the limit does not count it.
    """
    if _holding(snapshot) > snapshot.wanted:
        return []
    running = sum(j.instance.phase == InstancePhase.RUNNING and not j.instance.substituted for j in judged)
    most = min(running, snapshot.wanted) - 1
    order = sorted(
        (j for j in idle if not j.instance.substituted),
        key=lambda j: (j.verdict.low_since or snapshot.now, j.instance.id),
    )
    return order[: max(most, 0)]


def _action(
    snapshot: PolicySnapshot, policy: EffectivePolicy, done: Sequence[Judged], limit: Limit | None
) -> NewAction:
    spec = policy.spec
    uses = {j.instance.id: j.use for j in done}
    claims = [c for j in done for c in j.instance.claims]
    objects = [f"deployment:{snapshot.uid}", *(f"instance:{name}" for name in uses)]
    objects += dict.fromkeys(f"gpu:{c.device}" for c in claims)
    objects += dict.fromkeys(f"worker:{c.worker_id}" for c in claims)
    if policy.uid is not None:
        objects.append(f"policy:{policy.uid}")
    return NewAction(
        action=spec.action,
        policy=policy,
        instances=tuple((j.instance.id, j.instance.epoch) for j in done),
        objects=tuple(objects),
        gpus=sum(c.share for c in claims),
        message=_message(snapshot, policy, done),
        evidence=evidence_of(policy, uses, snapshot.now) | {"deployment": snapshot.name},
        limit=None if spec.dry_run else limit,
    )


def _message(snapshot: PolicySnapshot, policy: EffectivePolicy, done: Sequence[Judged]) -> str:
    """The policy, its action, and the first instance's reason, which names worker and GPU."""
    names = first_of([judged.instance.id for judged in done], 3)
    what = {
        "stop": f"stops {snapshot.name}",
        "scale_down": f"scales {snapshot.name} down by {names}",
        "notify": f"finds {names} idle",
    }[policy.spec.action]
    dry_run = "dry run: " if policy.spec.dry_run else ""
    return f"{dry_run}{policy.label} {what}: {done[0].verdict.message}"


def evidence_of(policy: EffectivePolicy, uses: Mapping[str, InstanceUse], now: float) -> dict[str, Any]:
    """The evidence of the verdict of `policy` on these instances; durations in seconds, utilization in percent."""
    spec = policy.spec
    gpus = [gpu for use in uses.values() for gpu in use.gpus]
    return {
        "policy": policy.name,
        "policy_generation": policy.generation,
        "action": spec.action,
        "dry_run": spec.dry_run,
        "window_s": spec.time_window,
        "min_gpu_utilization": spec.min_gpu_utilization,
        "gpus_mode": spec.gpus,
        "min_coverage": spec.needed_coverage,
        "grace_period_s": spec.grace_period,
        "instances": list(uses),
        "ignore_requests": spec.ignore_requests,
        **_requests(spec, uses.values(), now),
        "gpus": [_of_gpu(spec, gpu, now) for gpu in gpus[:_MAX_GPUS]],
        "gpus_left_out": max(len(gpus) - _MAX_GPUS, 0),
    }


def _requests(policy: UtilizationPolicy, uses: Iterable[InstanceUse], now: float) -> dict[str, Any]:
    """The number of requests in the window, None if unknown, and the time of the last known request."""
    ranks = [series for use in uses for series in use.requests if len(series)]
    windows = [window_of(series, end_of([series], now), policy.time_window) for series in ranks]
    request_times = [float(series.at[series.high > 0][-1]) for series in ranks if bool((series.high > 0).any())]
    return {
        "requests_seen": sum(map(requests_in, windows)) if any(len(w.at) for w in windows) else None,
        "last_request_at": time_text(max(request_times)) if request_times else None,
    }


def _of_gpu(policy: UtilizationPolicy, gpu: GpuUse, now: float) -> dict[str, Any]:
    evidence: dict[str, Any] = {"uuid": gpu.uuid, "worker": gpu.worker, "own_processes": gpu.own}
    if not len(gpu.series):
        unread_s = float(policy.time_window)
        figures = {"highest": None, "mean": None, "samples": 0, "coverage": 0.0, "unread_s": unread_s}
        return {**evidence, **figures, "series": [], "gaps": []}
    window = window_of(gpu.series, end_of([gpu.series], now), policy.time_window)
    slots = min(_SLOTS, max(int(policy.time_window / gpu.series.period[-1]), 1))
    return evidence | {
        "window_from": time_text(window.start),
        "window_until": time_text(window.end),
        "highest": _shown(float(window.high.max())) if len(window.high) else None,
        "mean": round(float(window.mean.mean()), 1) if len(window.mean) else None,
        "samples": len(window.at),
        "coverage": round(min(window.covered_s / policy.time_window, 1.0), 3),
        "unread_s": round(max(policy.time_window - window.covered_s, 0.0), 1),
        "gaps": [[time_text(begin), time_text(end)] for begin, end in window.gaps()[-_MAX_GAPS:]],
        "series": _drawn(window.since, window.at, window.high, window.start, window.end, slots),
    }


def _shown(percent: float) -> float:
    """Cut to a tenth, not rounded: a figure below the minimum must not look equal to it."""
    return math.floor(10 * percent + 1e-3) / 10


def time_text(at: float) -> str:
    """A time in evidence: ISO 8601 with date and zone."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _drawn(since: Any, at: Any, high: Any, start: float, end: float, slots: int) -> Sequence[float | None]:
    """The highest value in each slot of the window; None where no sample covers any of it."""
    slot_s = (end - start) / slots
    first = np.clip(np.floor((since - start) / slot_s + 1e-6), 0, slots - 1).astype(int)
    last = np.clip(np.ceil((at - start) / slot_s - 1e-6), 1, slots).astype(int)
    drawn: list[float | None] = [None] * slots
    for a, b, value in zip(first, last, high, strict=True):
        for n in range(a, b):
            drawn[n] = max(_shown(float(value)), drawn[n] or 0.0)
    return drawn
