"""The verdict on the mean of several GPUs."""

import math
import time

from controller.decide.policies.idle_verdict import judge
from controller.domain.telemetry.series import MeanSeries
from controller.domain.telemetry.utilization import Verdict
from support.builders.telemetry import NOW, PERIOD_S, gpu, policy, steady, use

ALL_LOW = steady(0)


def test_a_mean_is_taken_moment_by_moment() -> None:
    """Two GPUs in alternation: each is often high, their mean never."""
    ages = steady(0, to=620)
    turns = use(
        gpu("a", {age: 100 if n % 2 else 0 for n, age in enumerate(ages)}),
        gpu("b", {age: 0 if n % 2 else 100 for n, age in enumerate(ages)}),
    )
    assert judge(policy(gpus="mean", minimum=51), turns, NOW).verdict == "idle"
    assert judge(policy(gpus="mean", minimum=50), turns, NOW).verdict == "busy"
    assert judge(policy(gpus="all", minimum=51), turns, NOW) == Verdict(
        "busy", "busy", "b on gpu-1: in use, at or above 51 %"
    )


def test_a_mean_is_uncovered_where_any_gpu_is() -> None:
    half = {age: 0.0 for age in steady(0) if age <= 300}
    found = judge(policy(gpus="mean"), use(gpu("a", ALL_LOW), gpu("b", half)), NOW)
    assert (found.verdict, found.reason) == ("unknown", "coverage")
    assert "covered 51 %" in found.message


def test_a_mean_over_a_day_costs_no_more_than_each_gpu_by_itself() -> None:
    """As samples arrive: only what is new is computed. A ratio, since the machine's speed varies."""
    day = 86_400
    gpus = [gpu(f"g{n}", steady(5, to=day + 300)) for n in range(8)]
    mean = MeanSeries([one.series for one in gpus])
    instance = use(*gpus, ran_for_s=2 * day, mean=mean)
    rules = {mode: policy(day, gpus=mode, ignore_requests=True) for mode in ("all", "mean")}
    assert {judge(rule, instance, NOW).verdict for rule in rules.values()} == {"idle"}
    spent = dict.fromkeys(rules, math.inf)
    for look in range(1, 20):
        for one in gpus:
            one.series.put(NOW + look * 10, PERIOD_S, 5, 5)
        for mode, rule in rules.items():
            began = time.perf_counter()
            assert judge(rule, instance, NOW + look * 10).verdict == "idle"
            spent[mode] = min(spent[mode], time.perf_counter() - began)
    assert spent["mean"] <= 2 * spent["all"], spent


def test_a_mean_is_unknown_where_one_gpu_has_no_usable_samples() -> None:
    ahead = {age - 20: 0.0 for age in ALL_LOW}
    for samples, reason, text in (({}, "no_telemetry", "b on gpu-1: no GPU"), (ahead, "coverage", "b on gpu-1: its")):
        for order in (1, -1):
            gpus = [gpu("a", ALL_LOW), gpu("b", samples)][::order]
            found = judge(policy(gpus="mean"), use(*gpus), NOW)
            assert (found.verdict, found.reason) == ("unknown", reason)
            assert found.message.startswith(text)


def test_a_mean_is_named_after_its_gpus() -> None:
    one = judge(policy(gpus="mean"), use(gpu("a", ALL_LOW)), NOW)
    two = judge(policy(gpus="mean"), use(gpu("a", ALL_LOW), gpu("b", ALL_LOW)), NOW)
    assert (one.verdict, two.verdict) == ("idle", "idle")
    assert one.message.startswith("a on gpu-1: below")
    assert two.message.startswith("mean of 2 GPUs: below")
