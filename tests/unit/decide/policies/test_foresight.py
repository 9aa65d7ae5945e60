"""What a policy would stop at its next step after a change."""

from typing import Any

import pytest

from controller.decide.policies.foresight import NOTHING, Forecast, changed_snapshot, foresee, stops_more
from controller.domain.instances import Intent
from controller.domain.policies import EffectivePolicy, GpuClaim, Limit, PolicySnapshot, WatchedInstance
from support.builders.facts import spec
from support.builders.telemetry import NOW, gpu, policy, steady, use

LIMIT = Limit(1, ())


def facts(*names: str, action: str = "stop", **fields: Any) -> PolicySnapshot:
    instances = tuple(
        WatchedInstance(n, 1, "running", NOW - 7200, (GpuClaim(f"GPU-{n}", "w", "w", True, 1024, 1024),)) for n in names
    )
    rule = EffectivePolicy("rule", "p-1", 3, policy(600, 50, action=action, dry_run=fields.pop("dry_run", False)))
    given = {"policy": rule, "deleted": False, **fields}
    return PolicySnapshot(
        "u", "d", 5, 9, given["deleted"], spec(replicas=len(names)), given["policy"], (), instances, False, NOW
    )


def foreseen(found: PolicySnapshot, **samples: dict[float, float]) -> Forecast:
    return foresee(found, {i.id: use(gpu(f"GPU-{i.id}", samples.get(i.id, steady(0)))) for i in found.instances})


@pytest.mark.parametrize(
    ("found", "samples", "stops", "unknown"),
    [
        (facts("a", "b"), {}, 2, False),
        (facts("a", "b"), {"b": steady(100)}, 0, False),
        (facts("a", "b"), {"b": {0: 0}}, 0, True),  # with more data it could be idle
        (facts("a", "b"), {"a": steady(100), "b": {0: 0}}, 0, False),  # it would stop nothing then either
        (facts("a", "b", action="scale_down"), {"b": {0: 0}}, 1, False),
        (facts("a", "b", action="notify"), {"b": {0: 0}}, 0, False),
        (facts("a", "b", dry_run=True), {"b": {0: 0}}, 0, False),
        (facts("a", policy=None), {}, 0, False),
        (facts("a", deleted=True), {}, 0, False),
    ],
)
def test_the_next_step_is_foreseen(found: PolicySnapshot, samples: Any, stops: int, unknown: bool) -> None:
    seen = foreseen(found, **samples)
    assert (seen.stops, seen.unknown, seen.limit is not None) == (stops, unknown, stops > 0)
    assert seen.matters == (stops > 0 or unknown)
    assert bool(seen.message) == seen.matters
    if not seen.matters:
        assert seen == NOTHING


@pytest.mark.parametrize(
    ("planned", "today", "more"),
    [
        (Forecast(Limit(0, ())), Forecast(LIMIT), True),
        (Forecast(LIMIT), Forecast(LIMIT), False),
        (Forecast(Limit(2, ())), Forecast(LIMIT), False),
        (Forecast(LIMIT), NOTHING, True),
        (NOTHING, Forecast(LIMIT), False),
        (NOTHING, NOTHING, False),
    ],
)
def test_a_change_stops_more_where_it_leaves_fewer(planned: Forecast, today: Forecast, more: bool) -> None:
    assert stops_more(planned, today) is more


def test_a_change_of_the_spec_ends_the_limits_of_users_and_policies() -> None:
    kept = Intent("quota", 1, "limited")
    before = facts("a")
    limited = PolicySnapshot(**{
        **{name: getattr(before, name) for name in before.__slots__},
        "intents": (Intent("user", 0, "stopped"), kept, Intent("policy", 0, "policy_idle")),
    })  # fmt: skip
    after = changed_snapshot(limited, spec(replicas=3), None)
    assert (after.intents, after.generation, after.policy) == ((kept,), before.generation + 1, None)
    assert after.spec.replicas == 3
