"""Samples in memory: what arrives is kept until it was judged, and dropped after."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from controller.decide.policies.actions import decide_policy
from controller.domain.policies import EffectivePolicy, GpuClaim, PolicySnapshot, StoredVerdict, WatchedInstance
from controller.domain.telemetry.utilization import InstanceUse
from controller.leader.policy_samples import Telemetry
from controller.store.telemetry.samples import ProcessReading, Sample
from support.builders.facts import spec
from support.builders.telemetry import NOW, PERIOD_S, policy

IDLE_S, CUT_S = 9000.0, 4000.0  # how long it has been idle, and how long ago its agent was cut off
KEPT_S = 120 + 300  # the window and its margin
STORED = StoredVerdict(1, "p", None, 1, "stop", False, "idle", "idle", "", NOW - IDLE_S, None, "")
RULE = EffectivePolicy("p", None, 1, policy(120, 50, ignore_requests=True))
INSTANCE = WatchedInstance("i", 1, "running", NOW - 20_000, (GpuClaim("g", "w", "w", True, 500, 1000),), STORED)
FACTS = PolicySnapshot("d", "d", 1, 1, False, spec(), RULE, (), (INSTANCE,), False, NOW)


def samples(first: float, last: float, value: float = 0.0) -> list[Sample]:
    """From age `first` to age `last`."""
    ages = [first - n * PERIOD_S for n in range(int((first - last) / PERIOD_S) + 1)]
    return [Sample("g", NOW - age, value, value, PERIOD_S, None, (), PERIOD_S) for age in ages]


def watching() -> Telemetry:
    telemetry = Telemetry()
    telemetry.watch(FACTS)
    telemetry.put_past(["d"], ["g"], KEPT_S, [])
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
    """The backlog of an agent that was cut off is longer than the window, and arrives in one poll."""
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


def test_ranks_without_number_are_not_kept() -> None:
    """An agent may name any."""
    telemetry = watching()
    for n, sample in enumerate(samples(100, 80)):
        ranks = tuple(ProcessReading("i", 1, n * 1000 + rank, 0.0, 0.0, 1, 1) for rank in range(1000))
        telemetry.put([sample._replace(processes=ranks)])
    assert len(telemetry.use_of(INSTANCE).requests) == 1024


def test_below_since_of_one_gpu_is_not_that_of_another() -> None:
    """Policies on any GPU store one time for all: of the GPU that is low for longest."""
    claims = tuple(GpuClaim(gpu, "w", "w", True, 500, 1000) for gpu in ("g", "h"))
    rule = replace(RULE, spec=policy(120, 50, gpus="any", ignore_requests=True))
    instance = replace(INSTANCE, claims=claims)
    facts = replace(FACTS, policy=rule, instances=(instance,))
    telemetry = Telemetry()
    telemetry.watch(facts)
    telemetry.put_past(["d"], ["g", "h"], KEPT_S, [])
    used = [s._replace(device="h") for s in [*samples(9000, 3010, 90.0), *samples(3000, 0)]]
    for low, other in zip(samples(9000, 0), used, strict=True):
        telemetry.put([low, other])
        telemetry.trim()
    found = {g.uuid: g.low_after for g in telemetry.use_of(instance).gpus}
    assert found == {"g": -math.inf, "h": NOW - 3010}
    telemetry.put([samples(0, 0, 90.0)[0]._replace(at=NOW + PERIOD_S), used[-1]._replace(at=NOW + PERIOD_S)])
    effects = decide_policy(replace(facts, now=NOW + PERIOD_S), {"i": telemetry.use_of(instance)})
    assert effects.verdicts[0].verdict.low_since == NOW - 3010
    assert "h on w: below 50 % since 2026-11-21 11:39:50 UTC" in effects.verdicts[0].verdict.message


@pytest.mark.parametrize("exclusive", [True, False])
def test_the_past_is_the_same_as_if_it_had_arrived(exclusive: bool) -> None:
    """An instance on two GPUs of one host tells its requests with each of them, in samples of two agents' versions."""
    claims = tuple(GpuClaim(gpu, "w", "w", exclusive, 500, 1000) for gpu in ("g", "h"))
    facts = replace(FACTS, instances=(replace(INSTANCE, claims=claims),))
    past = [
        Sample(
            gpu,
            NOW - 100 + n * PERIOD_S,
            float(n),
            n / 2,
            PERIOD_S,
            None,
            tuple(
                ProcessReading("i", 1, rank, *((None, None) if n == rank else (n + 1.0, n + 2.0)), n % 3 or None, n)
                for rank in (0, 1)
            ),
            None if n == 5 else PERIOD_S / 2,
        )
        for gpu in ("g", "h")
        for n in (*range(8), 3)
    ]
    read, arrived = Telemetry(), Telemetry()
    for telemetry in (read, arrived):
        telemetry.watch(facts)
    read.put_past(["d"], ["g", "h"], KEPT_S, past)
    arrived.put_past(["d"], ["g", "h"], KEPT_S, [])
    arrived.put(past)
    for one, other in zip(*(_columns(t.use_of(facts.instances[0])) for t in (read, arrived)), strict=True):
        np.testing.assert_array_equal(one, other)


def _columns(use: InstanceUse) -> list[Any]:
    series = [*(gpu.series for gpu in use.gpus), *use.requests]
    assert len(series) == 4
    assert all(len(one) == 8 for one in series)
    return [column for s in series for column in (s.at, s.since, s.period, s.mean, s.high)]
