"""What a deployment's policy does next. The ids are those of the policy cases."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from controller.decide.policies.actions import decide_policy, evidence_of, is_judged, judge_again
from controller.decide.policies.texts import duration_text
from controller.domain.instances import Intent
from controller.domain.policies import (
    EffectivePolicy,
    GpuClaim,
    PolicyEffects,
    PolicySnapshot,
    StoredVerdict,
    WatchedInstance,
)
from controller.domain.telemetry.utilization import InstanceUse
from support.builders.facts import spec as deployment_spec
from support.builders.telemetry import NOW, gpu, policy, requests, steady, use

IDLE, BUSY, UNKNOWN = steady(0), steady(100), {0: 0}
UID = "6b0f"


def effective(**fields: Any) -> EffectivePolicy:
    return EffectivePolicy("rule", "p-1", 3, policy(600, 50, **fields))


def watched(name: str, phase: str = "running", **fields: Any) -> WatchedInstance:
    claims = (GpuClaim(f"GPU-{name}", "w-1", "gpu-1", exclusive=True, memory_mib=1024, device_mib=1024),)
    return replace(WatchedInstance(name, 1, phase, NOW - 7200, claims), **fields)


def facts(*instances: WatchedInstance, **fields: Any) -> PolicySnapshot:
    spec = deployment_spec(replicas=fields.pop("replicas", len(instances)))
    base = PolicySnapshot(UID, "d", 5, 9, False, spec, effective(), (), instances, False, NOW)
    return replace(base, **fields)


def decided(found: PolicySnapshot, samples: Mapping[str, Any]) -> PolicyEffects:
    """`samples` of each instance's GPU; unnamed instances are idle."""
    uses = {
        i.id: replace(
            use(gpu(f"GPU-{i.id}", samples.get(i.id, IDLE))), phase=i.phase, running_since=i.running_since
        )
        for i in found.instances
        if is_judged(i)
    }  # fmt: skip
    return decide_policy(found, uses)


def stored(plan: PolicyEffects, name: str) -> StoredVerdict:
    """The verdict that the effects leave stored."""
    write = next(w for w in plan.verdicts if w.instance == name)
    spec, verdict = write.policy.spec, write.verdict
    return StoredVerdict(
        write.epoch, write.policy.name, write.policy.uid, write.policy.generation, spec.action, spec.dry_run,
        verdict.verdict, verdict.reason, verdict.message, verdict.low_since, verdict.due_at, write.acted,
    )  # fmt: skip


def after(found: PolicySnapshot, plan: PolicyEffects) -> PolicySnapshot:
    """The facts with the stored verdicts."""
    return replace(found, instances=tuple(replace(i, stored=stored(plan, i.id)) for i in found.instances))


@pytest.mark.parametrize(
    ("others", "stops"),
    [
        pytest.param([watched("b"), watched("c")], True, id="U32-all-idle"),
        pytest.param([watched("busy"), watched("c")], False, id="U32-one-busy"),
        pytest.param([watched("unknown")], False, id="U32-one-unknown"),
        pytest.param([watched("b", "starting", running_since=None)], False, id="one-starts"),
        pytest.param([watched("b", "pending", running_since=None, claims=())], True, id="one-finds-no-place"),
        pytest.param([watched("b", "analyzing", running_since=None, claims=())], True, id="one-is-analyzed"),
        pytest.param([watched("busy"), watched("c", "pending", claims=())], False, id="one-busy-one-pending"),
        pytest.param([watched("b", "backoff")], False, id="one-holds-a-gpu-in-backoff"),
        pytest.param([watched("b", "unreachable")], False, id="one-is-silent"),
        pytest.param([watched("b", "succeeded", claims=())], True, id="one-has-ended"),
    ],
)
def test_u32_stop_only_if_all_wanted_replicas_are_idle(others: list[WatchedInstance], stops: bool) -> None:
    plan = decided(facts(watched("a"), *others), {"busy": BUSY, "unknown": UNKNOWN})
    assert [a.action for a in plan.actions] == (["stop"] if stops else [])
    if stops:
        assert plan.actions[0].limit is not None
        assert plan.actions[0].limit.max_replicas == 0


def test_a_missing_replica_prevents_the_stop() -> None:
    assert decided(facts(watched("a"), replicas=2), {}).actions == ()


def test_an_ending_replica_does_not_count() -> None:
    found = facts(watched("a"), watched("b", "stopping"), replicas=1)
    assert [i for i, _ in decided(found, {}).actions[0].instances] == ["a"]


def test_u10_one_action_for_a_gang_with_worker_and_gpu_in_the_reason() -> None:
    claims = tuple(GpuClaim(f"GPU-{n}", f"w-{n}", f"gpu-{n}", True, 1, 1) for n in (1, 2))
    gang = watched("a", claims=claims)
    uses: dict[str, InstanceUse] = {"a": use(gpu("GPU-1", BUSY), gpu("GPU-2", IDLE, worker="gpu-2"))}
    (action,) = decide_policy(facts(gang, policy=effective(gpus="any")), uses).actions
    assert "GPU-2 on gpu-2: below 50 %" in action.message
    assert {"gpu:GPU-1", "gpu:GPU-2", "worker:w-1", "worker:w-2", "policy:p-1"} <= set(action.objects)
    assert action.gpus == 2


def test_one_action_per_idle_episode() -> None:
    found = facts(watched("a"))
    plan = decided(found, {})
    assert plan.actions
    assert not decided(after(found, plan), {}).writes, "nothing is left to do"
    unknown = decided(after(found, plan), {"a": UNKNOWN})
    assert stored(unknown, "a").acted == "stop", "not knowing ends no episode"
    busy = decided(after(found, unknown), {"a": BUSY})
    assert stored(busy, "a").acted == ""
    assert decided(after(found, busy), {}).actions


def test_a_new_epoch_is_a_new_episode() -> None:
    found = facts(watched("a"))
    acted = after(found, decided(found, {}))
    anew = replace(acted, instances=(replace(acted.instances[0], epoch=2),))
    assert decided(anew, {}).actions


def test_a_changed_action_is_taken_anew_and_a_changed_window_is_not() -> None:
    found = facts(watched("a"), policy=effective(dry_run=True))
    acted = after(found, decided(found, {}))
    other = replace(effective(dry_run=True), generation=4)
    assert decided(replace(acted, policy=other), {}).actions == ()
    (action,) = decided(replace(acted, policy=effective()), {}).actions
    assert (action.reason, action.limit is not None) == ("policy_stop", True)


@pytest.mark.parametrize("action", ["notify", "stop"])
def test_another_policy_takes_its_own_action(action: str) -> None:
    """A deployment that is moved in mid-episode; the window goes on."""
    rule = effective(action=action, dry_run=True)
    found = facts(watched("a"), policy=rule)
    acted = after(found, decided(found, {}))
    assert decided(acted, {}).actions == ()
    other = replace(rule, name="other", uid="p-2", generation=1)
    (taken,) = decided(replace(acted, policy=other), {}).actions
    assert (taken.policy.name, taken.evidence["policy"]) == ("other", "other")
    inline = replace(rule, name="", uid=None)
    assert decided(replace(acted, policy=inline), {}).actions


@pytest.mark.parametrize(
    ("value", "before", "now", "wanted"),
    [
        pytest.param(30, (600, 20), (600, 50), "idle", id="threshold-raised"),
        pytest.param(30, (600, 50), (600, 20), "busy", id="threshold-lowered"),
        pytest.param(0, (3600, 50), (600, 50), "idle", id="window-shortened"),
        pytest.param(0, (600, 50), (3600, 50), "unknown", id="window-lengthened-beyond-its-life"),
    ],
)
def test_a_policy_changed_in_mid_window_is_judged_by_the_samples_there_are(
    value: float, before: tuple[int, int], now: tuple[int, int], wanted: str
) -> None:
    def rule(generation: int, numbers: tuple[int, int]) -> EffectivePolicy:
        return EffectivePolicy("rule", "p-1", generation, policy(*numbers))

    samples = {"a": steady(value, to=900)}
    found = facts(watched("a", running_since=NOW - 900), policy=rule(3, before))
    first = decided(found, samples)
    changed = replace(after(found, first), policy=rule(4, now))
    second = decided(changed, samples)
    assert second.judged == (wanted,)
    assert bool(second.actions) == (wanted == "idle" and not first.actions)
    assert stored(second, "a").policy_generation == 4


def test_a_changed_policy_knows_low_since_only_by_its_own_threshold() -> None:
    """What was below 50 % for days was not below 20 %."""
    found = facts(watched("a"), policy=effective(action="notify"))
    judged = replace(stored(decided(found, {}), "a"), low_since=NOW - 86_400)
    known = replace(found, instances=(replace(found.instances[0], stored=judged),))
    assert stored(decided(replace(known, now=NOW + 1), {"a": steady(0, at_0=60)}), "a").low_since is None
    lower = EffectivePolicy("rule", "p-1", 4, policy(600, 20, action="notify"))
    low_since = stored(decided(replace(known, policy=lower), {}), "a").low_since
    assert low_since is not None
    assert low_since >= NOW - 620


def test_a_start_that_comes_before_the_stop_begins_a_new_window() -> None:
    """The limit was removed before any instance stopped: it is neither stopped at once nor left idle for ever."""
    found = facts(watched("a"), policy=effective(ignore_requests=True))
    acted = after(found, decided(found, {}))
    started = decided(replace(acted, open_actions=True), {})
    assert (started.actions, started.end_actions, started.judged) == ((), True, ("unknown",))
    resumed = after(acted, started)
    assert not decided(resumed, {}).writes
    for later_s, actions in ((590, []), (600, ["stop"])):
        samples = {age - later_s: 0.0 for age in steady(0, to=1300)}
        plan = decided(replace(resumed, now=NOW + later_s), {"a": samples})
        assert [a.action for a in plan.actions] == actions


def test_scale_down_stops_the_longest_idle_and_keeps_one_running() -> None:
    found = facts(
        watched("a", running_since=NOW - 700), watched("b", running_since=NOW - 900), watched("c"),
        policy=effective(action="scale_down"),
    )  # fmt: skip
    (action,) = decided(found, {"c": BUSY}).actions
    assert action.limit is not None
    assert (action.limit.max_replicas, set(action.limit.victims)) == (1, {"a", "b"})
    (action,) = decided(facts(watched("a", running_since=NOW - 601), watched("b"), policy=found.policy), {}).actions
    assert [name for name, _ in action.instances] == ["b"]
    pending = facts(watched("a"), watched("b", "pending", claims=()), policy=found.policy)
    assert decided(pending, {}).actions == (), "who runs stays, though the other may never come"


@pytest.mark.parametrize(
    ("others", "cap"),
    [
        pytest.param([], 1, id="all-run"),
        pytest.param([watched("p", "pending", claims=())], 1, id="a-pending-one-gets-nothing-of-it"),
        pytest.param([watched(f"p{n}", "pending", claims=()) for n in range(5)], 1, id="nor-do-five"),
        pytest.param([watched("s", "starting", running_since=None)], 2, id="one-that-starts-stays"),
        pytest.param([watched("u", "unreachable")], 2, id="one-that-is-silent-stays"),
        pytest.param(
            [watched("u", "unreachable", substituted=True), watched("p", "pending", claims=())], 1, id="its-substitute"
        ),
    ],
)
def test_what_scale_down_frees_goes_to_no_replica_of_its_own(others: list[WatchedInstance], cap: int) -> None:
    found = facts(watched("a"), watched("b"), *others, policy=effective(action="scale_down"))
    (action,) = decided(found, {"a": BUSY}).actions
    assert action.limit is not None
    assert (action.limit.max_replicas, action.limit.victims) == (cap, ("b",))


def test_one_that_moves_elsewhere_is_not_stopped_in_place_of_a_busy_one() -> None:
    """A limit counts an instance and its copy as one, so what leaves anyway must not lower it."""
    moving = [watched("old", substituted=True), watched("copy"), watched("busy"), watched("idle")]
    found = facts(*moving, replicas=3, policy=effective(action="scale_down"))
    (action,) = decided(found, {"busy": BUSY, "copy": BUSY}).actions
    assert action.limit is not None
    assert (action.limit.max_replicas, action.limit.victims) == (2, ("idle",))
    alone = facts(*moving[:2], replicas=1, policy=effective(action="scale_down"))
    assert decided(alone, {"copy": BUSY}).actions == ()


@pytest.mark.parametrize("action", ["stop", "scale_down", "notify"])
@pytest.mark.parametrize("dry_run", [False, True])
def test_no_action_while_an_operator_keeps_it_awake(action: str, dry_run: bool) -> None:
    found = facts(watched("a"), watched("b"), policy=effective(action=action, dry_run=dry_run), awake_for_s=1.0)
    kept = decided(found, {})
    assert (kept.actions, kept.judged) == ((), ("idle", "idle")), "the verdict says what is"
    assert decided(replace(after(found, kept), awake_for_s=0.0), {}).actions, "and is acted on afterwards"


def test_scale_down_waits_until_earlier_victims_have_ended() -> None:
    limit = Intent("policy", 2, "policy_idle", ("a",))
    found = facts(watched("a"), watched("b"), watched("c"), policy=effective(action="scale_down"), intents=(limit,))
    assert decided(found, {"c": BUSY}).actions == ()
    gone = facts(watched("b"), watched("c"), policy=found.policy, intents=(limit,), replicas=3)
    (action,) = decided(gone, {"c": BUSY}).actions
    assert action.limit is not None
    assert action.limit.max_replicas == 1


def test_a_stopped_deployment_gets_no_action() -> None:
    stopped = (Intent("user", 0, "stopped"),)
    assert decided(facts(watched("a"), intents=stopped), {}).actions == ()


@pytest.mark.parametrize(
    ("fields", "ends"),
    [
        ({"intents": (Intent("policy", 0, "policy_idle"),)}, False),
        ({}, True),
        ({"intents": (Intent("policy", 0, "policy_idle"), Intent("user", 0, "stopped"))}, True),
        ({"intents": (Intent("policy", 1, "policy_idle"), Intent("user", 1, "stopped"))}, True),
        ({"intents": (Intent("policy", 1, "policy_idle"), Intent("autoscaler", 2, "load"))}, False),
        ({"intents": (Intent("policy", 1, "policy_idle"),), "replicas": 1}, True),
        ({"intents": (Intent("policy", 0, "policy_idle"),), "replicas": 0}, True),
        ({"deleted": True, "intents": (Intent("policy", 0, "policy_idle"),)}, True),
        ({"policy": None, "intents": (Intent("policy", 0, "policy_idle"),)}, False),
    ],
)
def test_an_action_ends_when_its_limit_no_longer_applies(fields: Mapping[str, Any], ends: bool) -> None:
    """Or when nothing wants the replicas any more that it keeps away: then it frees nothing."""
    assert decided(facts(open_actions=True, **({"replicas": 3} | fields)), {}).end_actions is ends


def test_without_a_policy_verdicts_are_forgotten() -> None:
    found = facts(watched("a"))
    judged = after(found, decided(found, {}))
    assert decided(replace(judged, policy=None), {}).forget == ("a",)
    assert decided(replace(judged, deleted=True), {}).forget == ("a",)
    going = replace(judged, instances=(replace(judged.instances[0], phase="stopping"),))
    assert decided(going, {}).forget == ("a",)


def test_a_look_at_one_instance_agrees_with_a_step() -> None:
    found = facts(watched("a"))
    rule = effective()
    one = use(gpu("GPU-a", IDLE))
    assert judge_again(rule, found.instances[0], one, NOW)[1]
    settled = after(found, decided(found, {})).instances[0]
    assert not judge_again(rule, settled, one, NOW)[1]
    assert judge_again(rule, settled, use(gpu("GPU-a", BUSY)), NOW)[1]


def test_evidence_is_limited_and_has_sixty_values() -> None:
    found = facts(watched("a"), policy=EffectivePolicy("", None, 5, policy("2h", 50)))
    (action,) = decided(found, {"a": steady(7, to=7300)}).actions
    (one,) = action.evidence["gpus"]
    assert one["series"] == [7.0] * 60
    assert (action.evidence["policy"], action.evidence["policy_generation"]) == ("", 5)
    assert not [o for o in action.objects if o.startswith("policy:")]
    assert "its inline policy stops d" in action.message


def test_evidence_shows_where_there_is_no_data() -> None:
    gap = {age: value for age, value in steady(0).items() if not 200 < age < 300}
    (action,) = decided(facts(watched("a")), {"a": gap}).actions
    (one,) = action.evidence["gpus"]
    assert one["series"].count(None) == 9
    assert one["coverage"] == pytest.approx(510 / 600, abs=0.001)


@pytest.mark.parametrize(
    ("fields", "names", "text"),
    [
        ({}, "a", "policy rule stops d: GPU-a on gpu-1: below 50 %"),
        ({"dry_run": True}, "a", "dry run: policy rule stops d: GPU-a on"),
        ({"action": "notify"}, "a", "policy rule finds a idle: GPU-a on"),
        ({"action": "scale_down"}, "abcd", "policy rule scales d down by a, b, c: GPU-a on"),
        ({"action": "scale_down"}, "abcde", "policy rule scales d down by a, b, c and 1 more: GPU-a on"),
        ({"action": "scale_down", "dry_run": True}, "abc", "dry run: policy rule scales d down by a, b: GPU-a on"),
    ],
)
def test_an_action_in_words(fields: dict[str, Any], names: str, text: str) -> None:
    found = facts(*map(watched, names), policy=effective(**fields))
    action = decided(found, {}).actions[0]
    assert action.message.startswith(text)
    assert (action.limit is None) == ("dry_run" in fields or fields.get("action") == "notify")


def test_the_evidence_of_a_gpu() -> None:
    samples = steady(7, at_300=49.97)
    (action,) = decided(facts(watched("a")), {"a": samples}).actions
    (one,) = action.evidence["gpus"]
    shown = {name: one[name] for name in ("uuid", "worker", "own_processes", "highest", "mean", "samples", "coverage")}
    assert shown == {
        "uuid": "GPU-a", "worker": "gpu-1", "own_processes": False, "highest": 49.9, "mean": 7.7, "samples": 60,
        "coverage": 1.0,
    }  # fmt: skip
    assert (one["window_from"], one["window_until"]) == ("2026-11-21T12:20:00+00:00", "2026-11-21T12:30:00+00:00")
    assert (one["unread_s"], one["gaps"], len(one["series"])) == (0.0, [], 60)
    assert sorted(set(one["series"])) == [7.0, 49.9]
    assert (action.evidence["requests_seen"], action.evidence["last_request_at"]) == (0, None)
    assert (action.evidence["gpus_left_out"], action.evidence["deployment"]) == (0, "d")
    assert action.objects == ("deployment:6b0f", "instance:a", "gpu:GPU-a", "worker:w-1", "policy:p-1")


def test_the_evidence_gives_the_coverage_in_thousandths() -> None:
    seen = {age: value for age, value in steady(7).items() if age < 400}
    (one,) = evidence_of(effective(), {"a": use(gpu("GPU-a", seen))}, NOW)["gpus"]
    assert (one["coverage"], one["unread_s"]) == (0.667, 200.0)


def test_the_evidence_has_at_most_64_gpus() -> None:
    many = use(*(gpu(f"GPU-{n}", IDLE) for n in range(66)))
    evidence = evidence_of(effective(), {"a": many}, NOW)
    assert (len(evidence["gpus"]), evidence["gpus_left_out"]) == (64, 2)


def test_the_evidence_of_a_gpu_without_samples() -> None:
    evidence = evidence_of(effective(), {"a": use(gpu("GPU-a", {}), requests=())}, NOW)
    assert evidence["gpus"] == [
        {
            "uuid": "GPU-a", "worker": "gpu-1", "own_processes": False, "highest": None, "mean": None, "samples": 0,
            "coverage": 0.0, "series": [], "gaps": [], "unread_s": 600.0,
        }
    ]  # fmt: skip
    assert (evidence["requests_seen"], evidence["last_request_at"]) == (None, None)


def test_the_evidence_counts_requests_of_all_ranks() -> None:
    ranks = (requests({300: 2, 100: 1}), requests({200: 4}))
    evidence = evidence_of(effective(), {"a": use(gpu("GPU-a", IDLE), requests=ranks)}, NOW)
    assert (evidence["requests_seen"], evidence["last_request_at"]) == (7, "2026-11-21T12:28:20+00:00")


def test_scale_down_is_never_below_one_running_replica_of_those_wanted() -> None:
    rule = effective(action="scale_down")
    (action,) = decided(facts(*map(watched, "abc"), replicas=3, policy=rule), {}).actions
    assert [name for name, _ in action.instances] == ["a", "b"]
    assert decided(facts(*map(watched, "abc"), replicas=2, policy=rule), {}).actions == (), "one more still ends"
    assert decided(facts(watched("a"), replicas=1, policy=rule), {}).actions == ()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(59, "59s"), (60, "1m"), (90, "90s"), (3600, "1h"), (5400, "90m"), (7200, "2h"), (0.5, "0.5s")],
)
def test_a_duration_is_written_as_in_manifests(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
