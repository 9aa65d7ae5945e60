"""How much of its window a verdict must rest on: gaps, silent tails and samples of long periods."""

import math
import random

import pytest

from controller.decide.policies.actions import evidence_of
from controller.decide.policies.idle_verdict import judge
from controller.decide.policies.texts import gaps_text
from controller.decide.policies.windows import low_after
from controller.domain.policies import EffectivePolicy
from support.builders.telemetry import NOW, gpu, policy, series, steady, use


@pytest.mark.parametrize("every", [20, 29])
@pytest.mark.parametrize("phase", range(0, 29, 3))
def test_u14_a_long_period_that_was_read_throughout_is_idle_at_every_phase(every: int, phase: int) -> None:
    low = use(gpu("a", steady(0, every=every, newest=min(phase, every), to=700), period_s=every))
    assert judge(policy(min_coverage=1), low, NOW).verdict == "idle"


@pytest.mark.parametrize("mode", ["all", "mean"])
@pytest.mark.parametrize("seed", range(5))
def test_u14_the_whole_window_is_covered_though_samples_are_dated_with_an_error(mode: str, seed: int) -> None:
    """A policy that asks for all of the window would never find anything idle."""
    error = random.Random(seed)  # noqa: S311 - no secret
    dated = [series((age + error.uniform(-0.1, 0.1), 0.0) for age in steady(0, to=700)) for _ in range(2)]
    low = use(gpu("a", dated[0]), gpu("b", dated[1], worker="gpu-2"))
    assert judge(policy(min_coverage=1, gpus=mode), low, NOW).verdict == "idle"
    late = {age: 0.0 for age in steady(0) if age < 300} | {age + 0.4: 0.0 for age in steady(0, to=700) if age >= 300}
    found = judge(policy(min_coverage=1, gpus=mode), use(gpu("a", late)), NOW)
    assert (found.verdict, found.reason) == ("unknown", "coverage")


@pytest.mark.parametrize("phase", range(0, 45, 3))
def test_u15_a_stream_with_gaps_is_unknown_at_every_phase(phase: int) -> None:
    """A period of 45 s, of which 30 s were read each time."""
    found = judge(policy(), use(gpu("a", steady(0, every=45, newest=phase, to=700), period_s=45, read_s=30)), NOW)
    assert (found.verdict, found.reason) == ("unknown", "coverage")
    covered = int(found.message.split("covered ")[1].split(" %")[0])
    assert 60 <= covered <= 67, found.message
    if phase <= 30:
        assert covered == 67


def test_u11_says_since_when_there_is_no_data() -> None:
    found = judge(policy(), use(gpu("a", {599: 0, 589: 0})), NOW)
    assert found.reason == "coverage"
    assert found.message == "a on gpu-1: covered 1 % of 10m, 80 % needed; no data since 2026-11-21 12:20:11 UTC"


def test_u15_what_samples_of_45_s_cover() -> None:
    """30 of each 45 s: enough for a minimum of two thirds."""
    rule = policy(window=450, min_coverage=0.66)
    gappy = gpu("a", steady(0, every=45, to=500), period_s=45, read_s=30)
    assert judge(rule, use(gappy), NOW).verdict == "idle"
    assert judge(policy(window=450, min_coverage=0.68), use(gappy), NOW).verdict == "unknown"


def test_u29_a_hang_shows_as_lost_coverage() -> None:
    found = judge(policy(window=300), use(gpu("a", steady(0, newest=100, to=400))), NOW)
    assert (found.verdict, found.reason) == ("unknown", "coverage")


def test_u45_a_gap_is_unknown_and_shown_and_nothing_is_below_since_before_it() -> None:
    rule = policy(window=120, minimum=50)
    held = steady(0, to=120)
    gap = use(gpu("a", {age: value for age, value in held.items() if age < 40 or age >= 80}))
    found = judge(rule, gap, NOW, low_before=NOW - 5000)
    assert (found.verdict, found.reason) == ("unknown", "coverage")
    assert "covered 66 %" in found.message
    assert found.low_since == NOW - 40
    (one,) = evidence_of(EffectivePolicy("p", None, 1, rule), {"i": gap}, NOW)["gpus"]
    assert one["coverage"] == pytest.approx(0.667, abs=0.001)
    assert one["series"] == [0.0] * 4 + [None] * 4 + [0.0] * 4
    assert one["gaps"] == [["2026-11-21T12:28:40+00:00", "2026-11-21T12:29:20+00:00"]]
    assert one["unread_s"] == 40


def test_u45_an_idle_message_says_what_was_not_read() -> None:
    gap = gpu("a", {age: 0 for age in steady(0, to=610) if age <= 100 or age >= 150})
    found = judge(policy(minimum=10), use(gap), NOW, low_before=NOW - 5000)
    assert (found.verdict, found.low_since) == ("idle", NOW - 110)
    assert found.message == (
        "a on gpu-1: below 10 % where it was read in 10m; "
        "not read from 2026-11-21 12:27:30 UTC to 2026-11-21 12:28:10 UTC; no request seen in 10m"
    )


@pytest.mark.parametrize("mode", ["all", "any", "mean"])
@pytest.mark.parametrize("coverage", [0.5, 0.8])
def test_u46_a_silent_tail_is_unknown(mode: str, coverage: float) -> None:
    rule = policy(window=180, minimum=50, gpus=mode, min_coverage=coverage, ignore_requests=True)
    found = judge(rule, use(gpu("a", steady(0, newest=25)), gpu("b", steady(0))), NOW)
    assert found.verdict == ("idle" if mode == "any" else "unknown"), found
    assert judge(rule, use(gpu("a", steady(0, newest=25))), NOW).verdict == "unknown"
    assert judge(rule, use(gpu("a", steady(0, newest=20))), NOW).verdict == "idle"


def test_u46_half_of_a_backlog_is_unknown() -> None:
    rule = policy(window=3600, minimum=50, min_coverage=0.5, ignore_requests=True)
    assert judge(rule, use(gpu("a", steady(0, newest=1800, to=3700))), NOW).verdict == "unknown"
    assert judge(rule, use(gpu("a", steady(0, to=3700))), NOW).verdict == "idle"


def test_a_silent_tail_keeps_what_was_known_before_it() -> None:
    """A backlog that fills the tail later must find since when it was low."""
    before = NOW - 86_400
    found = judge(policy(min_coverage=0.5), use(gpu("a", steady(0, newest=60))), NOW, before)
    assert (found.reason, found.low_since) == ("stale", before)
    assert found.message == "a on gpu-1: no data since 2026-11-21 12:29:00 UTC"
    assert judge(policy(), use(gpu("a", steady(0))), NOW, found.low_since).low_since == before


@pytest.mark.parametrize("mode", ["all", "any", "mean"])
@pytest.mark.parametrize("stored", [0.001, 0.05, 0.2, 0.49])
@pytest.mark.parametrize("covered_s", [10, 60, 130, 149, 151, 200, 300])
def test_a_stored_share_below_half_acts_as_half(mode: str, stored: float, covered_s: int) -> None:
    """An earlier version accepted it, and with it a verdict on hardly anything."""
    low = {age: value for age, value in steady(0, to=700).items() if age < covered_s or age > 330}
    for ignore in (True, False):
        one, half = (
            judge(policy(window=300, gpus=mode, min_coverage=share, ignore_requests=ignore), use(gpu("a", low)), NOW)
            for share in (stored, 0.5)
        )
        assert one == half
        assert one.verdict == ("idle" if ignore and covered_s > 150 else one.verdict)
        assert one.verdict != "idle" or covered_s > 140


@pytest.mark.parametrize(
    ("samples", "age"),
    [
        ({}, None),
        (steady(0), None),
        (steady(0, at_300=50), 300),
        (steady(0, at_300=49), None),
        (steady(0, at_300=50, at_200=90), 200),
        (steady(0, at_300=math.nan), 300),  # it may have been in use
        ({age: 0 for age in steady(0) if not 300 < age < 400}, 310),  # until the period of the next sample
        ({age: 0 for age in steady(0) if not 300 < age < 320}, 310),  # of one period
        ({age: 0 for age in steady(0, at_200=90) if not 300 < age < 400} | {200: 90}, 200),
        (steady(0, at_90=90), None),  # not before the time
    ],
)
def test_the_end_of_the_last_use_or_gap_before_a_time(samples: dict[float, float], age: float | None) -> None:
    assert low_after(series(samples), 50, NOW - 90) == (-math.inf if age is None else NOW - age)


def test_unknown_use_before_the_window_is_not_the_reason_of_an_unknown_verdict() -> None:
    known = {age: 0.0 for age in steady(0) if age > 500 or age < 100}
    older = dict.fromkeys(range(700, 900, 10), math.nan)
    for samples, reason in ((known | older, "coverage"), (known | {50: math.nan}, "no_process_utilization")):
        assert judge(policy(), use(gpu("a", samples, own=True)), NOW).reason == reason


def test_further_gaps_are_counted() -> None:
    gaps = [(NOW - 90.0, NOW - 80.0), (NOW - 60.0, NOW - 50.0), (NOW - 30.0, NOW - 20.0)]
    last, of_two, of_all = gaps_text(gaps[2:]), gaps_text(gaps[1:]), gaps_text(gaps)
    assert of_two.startswith(last)
    assert of_all.startswith(last)
    assert ("1" in of_two.removeprefix(last), "2" in of_all.removeprefix(last)) == (True, True)
