"""Leaps of the database's clock: a verdict is unknown or right, and use counts for a whole lived-through window."""

import pytest

from controller.decide.policies.idle_verdict import judge
from controller.domain.telemetry.utilization import ClockLeaps
from support.builders.telemetry import NOW, gpu, policy, requests, series, steady, use

HOUR_S = 3600.0
LITTLE = policy(min_coverage=0.5)  # what keeps these is not a lack of coverage


def forward(age: float, seconds: float) -> ClockLeaps:
    return ClockLeaps(forward=((NOW - age, seconds),))


def leapt_over(age: float, seconds: float, **changed: float) -> dict[float, float]:
    """Low samples, but none of the seconds before that age, by the clock after the leap."""
    found = steady(0, to=600 + seconds + 600, **changed)
    return {a: value for a, value in found.items() if not age <= a < age + seconds}


@pytest.mark.parametrize(("leapt_s", "wanted"), [(0, "idle"), (280, "unknown")])
def test_u50_time_that_the_databases_clock_leapt_over_is_not_lived_through(leapt_s: float, wanted: str) -> None:
    lived = {age: 0.0 for age in steady(0) if age < 320 or age >= 600}
    leaps = forward(320, leapt_s) if leapt_s else ClockLeaps()
    found = judge(LITTLE, use(gpu("a", lived), ran_for_s=600, leaps=leaps), NOW)
    assert found.verdict == wanted
    if leapt_s:
        assert (found.reason, found.due_at) == ("window_not_full", NOW + 280)


@pytest.mark.parametrize("seconds", [60.0, 490.0, 5 * HOUR_S])
@pytest.mark.parametrize("lived_s", [590, 600])
def test_use_counts_until_a_whole_window_was_lived_through(seconds: float, lived_s: int) -> None:
    """By the clock alone, use before a leap would be long ago."""
    age = lived_s + seconds
    used = use(gpu("a", leapt_over(50, seconds) | {age: 90.0}), leaps=forward(50, seconds), ran_for_s=10 * HOUR_S)
    found = judge(policy(min_coverage=0.5), used, NOW)
    assert (found.verdict == "busy") == (lived_s < 600), found
    assert found.due_at == (NOW + 10 if lived_s < 600 else None)
    asked = use(
        gpu("a", leapt_over(50, seconds)),
        requests=(series(leapt_over(50, seconds) | {age: 1.0}),),
        leaps=forward(50, seconds),
        ran_for_s=10 * HOUR_S,
    )
    found = judge(policy(min_coverage=0.5), asked, NOW)
    assert (found.verdict == "busy") == (lived_s < 600), found


def test_a_leap_of_hours_is_uncovered_until_a_window_of_samples_has_followed() -> None:
    for age, wanted in ((100, "unknown"), (470, "unknown"), (490, "idle")):
        low = use(gpu("a", leapt_over(age, 5 * HOUR_S)), leaps=forward(age, 5 * HOUR_S), ran_for_s=10 * HOUR_S)
        assert judge(policy(), low, NOW).verdict == wanted, age


def test_while_samples_are_in_the_future_nothing_is_idle() -> None:
    """The clock was set back by two hours, a minute ago."""
    held = steady(0, to=60) | {age - 2 * HOUR_S: 0.0 for age in steady(0, newest=60, to=4 * HOUR_S)}
    leaps = ClockLeaps(back=((NOW - 60, NOW - 60 + 2 * HOUR_S),))
    for known in (leaps, ClockLeaps()):  # a new leader does not know of it
        found = judge(LITTLE, use(gpu("a", held), ran_for_s=4 * HOUR_S, leaps=known), NOW)
        assert found.verdict == "unknown"
        assert "set back" in found.message


def test_samples_of_time_that_came_twice_hide_no_gap() -> None:
    """Nothing was read the second time; the samples are those of the first."""
    back = ClockLeaps(back=((NOW - HOUR_S, NOW - 100),))
    assert judge(policy(), use(gpu("a", steady(0))), NOW).verdict == "idle"
    found = judge(policy(), use(gpu("a", steady(0)), leaps=back), NOW)
    assert (found.verdict, found.reason) == ("unknown", "coverage")
    assert "covered 16 %" in found.message
    small = ClockLeaps(back=((NOW - 100, NOW - 97),))
    assert judge(policy(), use(gpu("a", steady(0)), leaps=small), NOW).verdict == "idle", "windows do not begin anew"


def test_use_in_time_that_came_twice_counts() -> None:
    back = ClockLeaps(back=((NOW - HOUR_S, NOW - 100),))
    assert judge(policy(), use(gpu("a", steady(0, at_300=90)), leaps=back), NOW).verdict == "busy"
    asked = use(gpu("a", steady(0)), requests=(requests({300: 1}),), leaps=back)
    assert judge(policy(), asked, NOW).verdict == "busy"


def test_an_instance_that_runs_since_the_future_is_unknown() -> None:
    assert judge(LITTLE, use(gpu("a", steady(0)), ran_for_s=-HOUR_S), NOW).reason == "window_not_full"
