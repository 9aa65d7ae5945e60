"""Every policy case that concerns the verdict, by its id."""

import math
import time
from datetime import UTC, datetime

import pytest

from controller.decide.policies.actions import evidence_of
from controller.decide.policies.idle_verdict import judge
from controller.domain.policies import EffectivePolicy
from controller.domain.telemetry.series import Series
from controller.domain.telemetry.utilization import InstanceUse
from schemas.manifest.policy import UtilizationPolicy
from support.builders.telemetry import NOW, PERIOD_S, gpu, policy, requests, series, steady, use

SPARSE = {280: 30, 270: 30, 10: 40}
ALL_LOW = steady(0)
BUSY = gpu("b", steady(100))


@pytest.mark.parametrize(
    ("wanted", "rule", "instance"),
    [
        pytest.param("busy", policy(), use(gpu("a", SPARSE), BUSY), id="U1"),
        pytest.param("unknown", policy(gpus="any"), use(gpu("a", SPARSE), BUSY), id="U1b"),
        pytest.param("busy", policy(gpus="any"), use(gpu("a", {590: 30, 580: 30, 10: 80})), id="U2"),
        pytest.param(
            "unknown", policy(gpus="any"), use(gpu("a", {1190: 80, 1180: 80, 590: 30, 580: 30, 10: 40})), id="U3"
        ),
        pytest.param("idle", policy(minimum=10), use(gpu("a", ALL_LOW)), id="U4"),
        pytest.param("idle", policy(minimum=10), use(gpu("a", steady(9))), id="U6"),
        pytest.param("busy", policy(minimum=10), use(gpu("a", steady(0, at_300=10))), id="U7-within"),
        pytest.param("busy", policy(minimum=10), use(gpu("a", steady(0, at_590=10))), id="U7-oldest-within"),
        pytest.param("idle", policy(minimum=10), use(gpu("a", steady(0, at_600=10))), id="U7-has-left"),
        pytest.param(
            "busy", policy(minimum=90), use(*(gpu(f"g{n}", steady(100 if n else 0)) for n in range(8))), id="U9-all"
        ),
        pytest.param(
            "idle",
            policy(minimum=90, gpus="any"),
            use(*(gpu(f"g{n}", steady(100 if n else 0)) for n in range(8))),
            id="U9-any",
        ),
        pytest.param(
            "idle",
            policy(minimum=90, gpus="mean"),
            use(*(gpu(f"g{n}", steady(100 if n else 0)) for n in range(8))),
            id="U9-mean-87.5",
        ),
        pytest.param(
            "busy",
            policy(minimum=87, gpus="mean"),
            use(*(gpu(f"g{n}", steady(100 if n else 0)) for n in range(8))),
            id="U9-mean-at-the-minimum",
        ),
        pytest.param("unknown", policy(), use(gpu("a", {599: 0, 589: 0})), id="U11"),
        pytest.param("unknown", policy(), use(gpu("a", {0: 0})), id="U13"),
        pytest.param("unknown", policy(window=30), use(gpu("a", {0: 0})), id="U13-in-the-shortest-window"),
        pytest.param("idle", policy(), use(gpu("a", ALL_LOW | {300.0: 0})), id="U17-a-report-without-any-GPU"),
        pytest.param("unknown", policy(), use(gpu("a", {})), id="U20"),
        pytest.param("idle", policy(minimum=100), use(gpu("a", steady(99))), id="U23-99"),
        pytest.param("busy", policy(minimum=100), use(gpu("a", steady(100))), id="U23-100"),
        pytest.param("unknown", policy(), use(gpu("a", steady(0, to=580)), ran_for_s=590), id="U26-too-early"),
        pytest.param("idle", policy(), use(gpu("a", ALL_LOW), ran_for_s=600), id="U26-lived-through"),
        pytest.param(
            "unknown",
            policy(),
            use(gpu("a", {age: 0 for age in steady(0, to=1200) if age > 600 or age == 0})),
            id="U28-on-return",
        ),
        pytest.param("idle", policy(), use(gpu("a", ALL_LOW)), id="U28-the-gap-is-filled"),
        pytest.param("unknown", policy(), use(gpu("a", steady(0, newest=300, to=900))), id="U29-no-samples"),
        pytest.param("unknown", policy(), use(gpu("a", ALL_LOW), ran_for_s=60), id="U31-restarted"),
        pytest.param("idle", policy(), use(gpu("a", steady(0), own=True)), id="U44-its-own-processes"),
        pytest.param("busy", policy(), use(gpu("a", steady(95), own=True)), id="U44-its-neighbour"),
        pytest.param("unknown", policy(), use(gpu("a", steady(math.nan), own=True)), id="U44-the-driver-gives-none"),
    ],
)
def test_verdict(wanted: str, rule: UtilizationPolicy, instance: InstanceUse) -> None:
    verdict = judge(rule, instance, NOW)
    assert verdict.verdict == wanted, verdict


def test_u10_a_gang_has_one_verdict_that_names_worker_and_gpu() -> None:
    gang = use(gpu("a", steady(100)), gpu("b", ALL_LOW, worker="gpu-2"))
    assert judge(policy(), gang, NOW).verdict == "busy"
    found = judge(policy(gpus="any"), gang, NOW)
    assert (found.verdict, found.message) == (
        "idle",
        "b on gpu-2: below 80 % since 2026-11-21 12:19:50 UTC; no request seen in 10m",
    )


@pytest.mark.parametrize("mode", ["all", "any", "mean"])
def test_u19_the_order_of_the_gpus_has_no_effect(mode: str) -> None:
    gpus = [gpu("a", ALL_LOW), gpu("b", steady(0, at_300=90)), gpu("c", SPARSE)]
    first, second = (judge(policy(gpus=mode), use(*order), NOW) for order in (gpus, gpus[::-1]))
    assert (first.verdict, first.low_since, first.due_at) == (second.verdict, second.low_since, second.due_at)


def test_u20_without_telemetry_the_reason_says_so() -> None:
    found = judge(policy(), use(gpu("a", {})), NOW)
    assert (found.reason, found.message) == ("no_telemetry", "a on gpu-1: no GPU telemetry")
    assert judge(policy(), use(), NOW).reason == "no_telemetry"


def test_u26_the_first_full_window_is_idle_at_once() -> None:
    """No delay beyond the sampling period."""
    ages = list(range(0, 620, 10))
    for ran_for_s, wanted in ((599, "unknown"), (600, "idle")):
        found = judge(policy(), use(gpu("a", dict.fromkeys(ages, 0)), ran_for_s=ran_for_s), NOW)
        assert found.verdict == wanted
    assert judge(policy(), use(gpu("a", ALL_LOW), ran_for_s=599), NOW).reason == "window_not_full"


def test_u31_grace_counts_from_running() -> None:
    rule = policy(grace_period="5m")
    assert judge(rule, use(gpu("a", ALL_LOW), ran_for_s=899), NOW).reason == "window_not_full"
    assert judge(rule, use(gpu("a", ALL_LOW), ran_for_s=900), NOW).verdict == "idle"


def test_u31_earlier_use_of_the_gpu_does_not_count() -> None:
    """The loading, and an earlier holder of the GPU."""
    found = judge(policy(), use(gpu("a", steady(100, newest=100) | steady(0, to=90)), ran_for_s=95), NOW)
    assert (found.verdict, found.reason) == ("unknown", "window_not_full")
    assert found.due_at == NOW - 95 + 600


def test_u42_a_longer_window_uses_existing_samples() -> None:
    held = use(gpu("a", steady(0, to=1200)))
    assert [judge(policy(window=w), held, NOW).verdict for w in (300, 1200)] == ["idle", "idle"]


def test_u44_the_reason_names_the_missing_process_utilization() -> None:
    found = judge(policy(), use(gpu("a", steady(math.nan), own=True)), NOW)
    assert found.reason == "no_process_utilization"
    part = judge(policy(), use(gpu("a", steady(0) | dict.fromkeys(range(0, 300, 10), math.nan), own=True)), NOW)
    assert part.reason == "no_process_utilization"


@pytest.mark.parametrize("phase", ["starting", "unhealthy", "unreachable", "stopping"])
def test_an_instance_that_is_not_running_is_unknown(phase: str) -> None:
    assert judge(policy(), use(gpu("a", ALL_LOW), phase=phase), NOW).reason == "not_running"


QUIET = requests()
UNKNOWN = series(dict.fromkeys(steady(0), math.nan))


@pytest.mark.parametrize(
    ("wanted", "reason", "seen"),
    [
        pytest.param("busy", "requests", (requests({0: 1}),), id="in-flight"),
        pytest.param("busy", "requests", (requests({590: 1}),), id="at-the-begin-of-the-window"),
        pytest.param("idle", "idle", (requests({600: 1}),), id="has-left-the-window"),
        pytest.param("busy", "requests", (UNKNOWN, requests({0: 2})), id="of-another-rank"),
        pytest.param("unknown", "requests_unknown", (UNKNOWN,), id="never-known"),
        pytest.param("unknown", "requests_unknown", (QUIET, UNKNOWN), id="unknown-of-one-rank"),
        pytest.param("unknown", "requests_unknown", (requests(newest=31),), id="not-known-of-late"),
        pytest.param("unknown", "requests_unknown", (), id="no-report"),
        pytest.param("idle", "idle", (requests(newest=20),), id="of-the-last-two-periods"),
        pytest.param("idle", "idle", (requests(dict.fromkeys(range(200, 300, 10), math.nan)),), id="some-unknown"),
        pytest.param(
            "unknown",
            "requests_unknown",
            (requests(dict.fromkeys(range(200, 330, 10), math.nan)),),
            id="too-many-unknown",
        ),
    ],
)
def test_requests(wanted: str, reason: str, seen: tuple[Series, ...]) -> None:
    low = use(gpu("a", ALL_LOW), requests=seen)
    found = judge(policy(), low, NOW)
    assert (found.verdict, found.reason) == (wanted, reason), found
    assert judge(policy(ignore_requests=True), low, NOW).verdict == "idle"


def test_u47_one_short_request_each_15_s_is_busy() -> None:
    rule = policy(window=120, minimum=50)
    ranks = (requests(dict.fromkeys((10, 20, 40, 50, 70, 80, 100, 110), 1), to=200),)
    found = judge(rule, use(gpu("a", steady(5, to=200)), requests=ranks), NOW)
    assert (found.verdict, found.reason) == ("busy", "requests")
    assert found.message == "the last request was seen at 2026-11-21 12:29:50 UTC, within its window of 2m"
    assert found.due_at == NOW - 10 + 120
    evidence = evidence_of(EffectivePolicy("p", None, 1, rule), {"i": use(gpu("a", []), requests=ranks)}, NOW)
    assert (evidence["requests_seen"], evidence["last_request_at"]) == (8, "2026-11-21T12:29:50+00:00")


def test_u51_times_have_date_and_zone_after_three_idle_days() -> None:
    three_days = NOW - 3 * 86_400
    found = judge(policy(minimum=10), use(gpu("a", ALL_LOW), ran_for_s=4 * 86_400), NOW, three_days)
    assert found.message == "a on gpu-1: below 10 % since 2026-11-18 12:30:00 UTC; no request seen in 10m"
    ignoring = judge(policy(minimum=10, ignore_requests=True), use(gpu("a", ALL_LOW)), NOW)
    assert ignoring.message.endswith("; requests are ignored")


def test_a_rank_that_never_reported_its_requests_is_unknown() -> None:
    gang = use(gpu("a", ALL_LOW), gpu("b", ALL_LOW, worker="gpu-2"), requests=(requests(),))
    assert judge(policy(), gang, NOW).reason == "requests_unknown"


def test_a_shared_gpu_whose_newest_samples_are_unknown_is_not_fresh() -> None:
    own = gpu("a", steady(0, to=3700) | dict.fromkeys(range(0, 60, 10), math.nan), own=True)
    found = judge(policy(window=3600), use(own), NOW)
    assert (found.verdict, found.reason) == ("unknown", "no_process_utilization")


def test_requests_do_not_hide_that_the_gpu_is_in_use() -> None:
    both = use(BUSY, requests=(requests({0: 1}),))
    assert judge(policy(), both, NOW).reason == "busy"


def test_when_it_went_low_and_when_it_is_due() -> None:
    found = judge(policy(), use(gpu("a", steady(0, at_300=90))), NOW)
    assert (found.verdict, found.low_since, found.due_at) == ("busy", NOW - 300, NOW + 300)
    assert judge(policy(), use(BUSY), NOW).low_since is None


def test_of_any_gpu_the_earliest_time_is_due() -> None:
    quiet, in_use = gpu("a", steady(0, at_100=90)), dict.fromkeys(range(160, 610, 10), 90)
    found = judge(policy(gpus="any"), use(quiet, gpu("b", in_use)), NOW)
    assert (found.verdict, found.due_at) == ("busy", NOW - 160 + 600), "b may be low since its last sample"
    hardly_known = gpu("b", dict.fromkeys(range(310, 610, 10), 0))
    assert judge(policy(gpus="any"), use(quiet, hardly_known), NOW).due_at is None


def test_low_since_is_remembered_beyond_the_samples() -> None:
    before = NOW - 5000
    assert judge(policy(), use(gpu("a", ALL_LOW)), NOW, before).low_since == before
    assert judge(policy(), use(gpu("a", steady(0, at_300=90))), NOW, before).low_since == NOW - 300


def test_a_database_clock_that_was_set_back_makes_nothing_idle() -> None:
    """Its old samples lie in the future; the samples in the window are an hour old."""
    found = judge(policy(), use(gpu("a", series(steady(0, newest=-3600, to=4000)))), NOW)
    assert found.verdict == "unknown"


@pytest.mark.parametrize("mode", ["all", "any", "mean"])
def test_workers_that_sample_at_different_moments(mode: str) -> None:
    gang = use(gpu("a", steady(0, to=620)), gpu("b", steady(0, newest=9, to=620), worker="gpu-2"))
    assert judge(policy(gpus=mode, min_coverage=1), gang, NOW).verdict == "idle"


def test_a_change_to_winter_time_within_the_window_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case U41: in Berlin's clock 03:00 is followed by 02:00 at 01:00 UTC of that day."""
    shift_s = datetime(2026, 10, 25, 1, 5, tzinfo=UTC).timestamp() - NOW
    moved, none = Series(), Series()
    for age in sorted(steady(0), reverse=True):
        moved.put(NOW + shift_s - age, PERIOD_S, 0, 0)
        none.put(NOW + shift_s - age, PERIOD_S, 0, 0)
    found = set()
    try:
        for zone in ("UTC", "Europe/Berlin"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            instance = InstanceUse("running", NOW + shift_s - 7200, (gpu("a", moved),), (none,))
            found.add(judge(policy(), instance, NOW + shift_s))
    finally:
        monkeypatch.undo()
        time.tzset()
    (verdict,) = found
    assert verdict.verdict == "idle"


@pytest.mark.parametrize(("value", "shown"), [(9.97, 9.9), (9.0, 9.0), (9.3, 9.3), (0.1, 0.1)])
def test_evidence_of_idleness_shows_no_figure_at_the_minimum(value: float, shown: float) -> None:
    rule, instance = policy(minimum=10), use(gpu("a", steady(value)))
    assert judge(rule, instance, NOW).verdict == "idle"
    (found,) = evidence_of(EffectivePolicy("p", None, 1, rule), {"i": instance}, NOW)["gpus"]
    assert found["highest"] == max(found["series"]) == shown


@pytest.mark.parametrize("ranks", [({0: 1}, {}), ({}, {0: 1}), ({0: 1}, {0: 1})])
def test_a_request_in_flight_at_any_rank_is_use(ranks: tuple[dict[float, float], ...]) -> None:
    gang = use(gpu("a", ALL_LOW), gpu("b", ALL_LOW, worker="gpu-2"), requests=tuple(map(requests, ranks)))
    found = judge(policy(), gang, NOW)
    assert (found.verdict, found.reason) == ("busy", "requests")
    assert found.message == "requests are in flight or waiting"
    earlier = use(gpu("a", ALL_LOW), requests=(requests({100: 1}),))
    assert judge(policy(), earlier, NOW).message.startswith("the last request was seen at 2026-11-21 12:28:20 UTC")


def test_samples_that_are_ahead_of_the_clock_are_unknown() -> None:
    for ahead_s, verdict in ((5, "idle"), (6, "unknown")):
        found = judge(policy(), use(gpu("a", {age - ahead_s: 0.0 for age in steady(0)})), NOW)
        assert found.verdict == verdict, ahead_s


def test_any_gpu_that_is_unknown_leaves_the_time_of_an_idle_verdict_open() -> None:
    """Its next sample may show it idle, so no time is due although the window of the other ends at a known time."""
    young, blind = gpu("a", ALL_LOW), gpu("b", {})
    assert judge(policy(gpus="any"), use(young, ran_for_s=500), NOW).due_at == NOW + 100
    for order in ((young, blind), (blind, young)):
        found = judge(policy(gpus="any"), use(*order, ran_for_s=500), NOW)
        assert (found.verdict, found.due_at) == ("unknown", None)


def test_requests_of_each_rank_must_cover_the_window() -> None:
    gpus = gpu("a", ALL_LOW), gpu("b", ALL_LOW, worker="gpu-2")
    for short_first in (False, True):
        seen = [requests(), requests(to=100)]
        found = judge(policy(), use(*gpus, requests=tuple(seen[::-1] if short_first else seen)), NOW)
        assert (found.verdict, found.reason) == ("unknown", "requests_unknown")


def test_ignored_requests_change_nothing_of_a_verdict_that_does_not_rest_on_them() -> None:
    for samples in (steady(100), {}, {0: 0}):
        one = use(gpu("a", samples))
        assert judge(policy(ignore_requests=True), one, NOW) == judge(policy(), one, NOW)


@pytest.mark.parametrize(("ran_for_s", "resumed_s"), [(7200, 300), (300, 7200), (300, None)])
def test_the_window_begins_with_the_later_of_its_start_and_its_resumption(
    ran_for_s: float, resumed_s: float | None
) -> None:
    resumed_at = None if resumed_s is None else NOW - resumed_s
    found = judge(policy(), use(gpu("a", ALL_LOW), ran_for_s=ran_for_s), NOW, resumed_at=resumed_at)
    assert (found.verdict, found.reason, found.due_at) == ("unknown", "window_not_full", NOW + 300)
