"""Samples in memory: what arrives is kept until it was judged, and dropped after."""

import pytest

from controller.decide.policies.actions import decide_policy
from controller.domain.policies import EffectivePolicy, GpuClaim, PolicyFacts, StoredVerdict, WatchedInstance
from controller.leader.policy_samples import Telemetry
from controller.store.telemetry.sample_reads import Sample
from support.builders.telemetry import NOW, PERIOD_S, policy

IDLE_S, CUT_S = 9000.0, 4000.0  # how long it has been idle, and how long ago its agent was cut off
KEPT_S = 120 + 300  # the window and its margin
STORED = StoredVerdict(1, "p", None, 1, "stop", False, "idle", "idle", "", NOW - IDLE_S, None, "")
RULE = EffectivePolicy("p", None, 1, policy(120, 50, ignore_requests=True))
INSTANCE = WatchedInstance("i", 1, "running", NOW - 20_000, (GpuClaim("g", "w", "w", True, 500, 1000),), STORED)
FACTS = PolicyFacts("d", "d", 1, 1, False, 1, RULE, (), (INSTANCE,), False, NOW)


def samples(first: float, last: float, value: float = 0.0) -> list[Sample]:
    """From age `first` to age `last`."""
    ages = [first - n * PERIOD_S for n in range(int((first - last) / PERIOD_S) + 1)]
    return [Sample("g", NOW - age, value, value, PERIOD_S, None, (), PERIOD_S) for age in ages]


def watching() -> Telemetry:
    telemetry = Telemetry()
    telemetry.watch(FACTS)
    telemetry.put_past(["g"], KEPT_S, [])
    for sample in samples(IDLE_S, CUT_S):
        telemetry.put([sample])
        telemetry.trim()
    return telemetry


@pytest.mark.parametrize(
    ("between", "low_since"),
    [
        (samples(3990, 3000) + samples(2990, 1010, 90.0), NOW - 1010),
        (samples(3990, 3000), NOW - 1000 - PERIOD_S),
        (samples(3990, 1010), NOW - IDLE_S),
    ],
    ids=["use", "a-gap", "low-throughout"],
)
def test_what_a_long_backlog_tells_ends_below_since(between: list[Sample], low_since: float) -> None:
    """The backlog of an agent that was cut off is longer than the window, and arrives in one look."""
    telemetry = watching()
    telemetry.trim()
    telemetry.put([*between, *samples(1000, 0)])
    effects = decide_policy(FACTS, {"i": telemetry.use_of(INSTANCE)})
    assert effects.judged == ("idle",)
    assert effects.verdicts[0].verdict.low_since == low_since


def test_a_judged_backlog_is_dropped() -> None:
    telemetry = watching()
    telemetry.put(samples(3990, 0))
    assert telemetry.samples > 300
    telemetry.trim()
    telemetry.trim()
    assert telemetry.samples <= KEPT_S / PERIOD_S + 2
