"""Properties of verdicts, whatever samples arrive in whatever order."""

import math
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.decide.policies.idle_verdict import judge
from controller.domain.series import Series
from controller.domain.utilization import Verdict
from schemas.manifest.policy import UtilizationPolicy
from support.builders.telemetry import NOW, PERIOD_S, gpu, policy, use

Sample = tuple[float, float]  # age in seconds, highest utilization
MINIMUM = 50
WINDOWS = st.sampled_from([30, 60, 300])
MODES = st.sampled_from(["all", "any", "mean"])
SPEAKS_S = 30.0


@st.composite
def streams(draw: st.DrawFn) -> list[Sample]:
    """Samples with gaps, at skewed times, sometimes duplicated; half of all streams are low throughout."""
    values = st.floats(0, draw(st.sampled_from([MINIMUM - 1, 100])), allow_nan=False, width=32)
    age, samples = draw(st.floats(0, 60)), list[Sample]()
    while age < 700 and len(samples) < 80:
        samples.append((age, draw(values)))
        age += draw(st.sampled_from([200, 10, 10, 10, 10, 9, 11, 29, 45, 0.5])) + draw(st.floats(0, 0.4))
    return draw(st.permutations(samples + samples[: draw(st.integers(0, 5))]))


def judged(rule: UtilizationPolicy, *of_gpus: Sequence[Sample]) -> Verdict:
    return judge(rule, use(*(gpu(f"g{n}", samples) for n, samples in enumerate(of_gpus))), NOW)


def window_end(samples: Sequence[Sample]) -> float:
    """The window's end, as an age."""
    newest = min(age for age, _ in samples)
    return newest if newest <= SPEAKS_S else 0.0


def value_at(samples: Sequence[Sample], age: float) -> float:
    """The step function of one GPU, by the definition; NaN where it is uncovered."""
    by_age = sorted({a: max(v for b, v in samples if b == a) for a, _ in samples}.items())
    speaking = [(a, v) for a, v in by_age if a <= age]
    if not speaking:
        return math.nan
    at, value = speaking[-1]
    older = [a for a, _ in by_age if a > at]
    since = min(older[0], at + SPEAKS_S) if older else at + PERIOD_S
    return value if age < since else math.nan


@given(streams(), WINDOWS, st.sampled_from(["all", "any"]), st.floats(0.05, 1))
@settings(max_examples=150, deadline=None)
def test_never_idle_with_a_sample_at_or_above_the_minimum_in_the_window(
    samples: list[Sample], window: int, mode: str, coverage: float
) -> None:
    found = judged(policy(window, MINIMUM, gpus=mode, min_coverage=coverage), samples)
    end = window_end(samples)
    if any(end <= age < end + window and value >= MINIMUM for age, value in samples):
        assert found.verdict == "busy"
    else:
        assert found.verdict != "busy"


@given(streams(), WINDOWS, MODES, st.floats(0.05, 1))
@settings(max_examples=150, deadline=None)
def test_never_idle_under_coverage(samples: list[Sample], window: int, mode: str, coverage: float) -> None:
    found = judged(policy(window, MINIMUM, gpus=mode, min_coverage=coverage), samples)
    if found.verdict == "idle":
        end, step = window_end(samples), 0.25
        points = [end + step * (n + 0.5) for n in range(int(window / step))]
        covered = sum(not math.isnan(value_at(samples, age)) for age in points) / len(points)
        # Each edge of what is covered falls within one step of the grid.
        assert covered >= coverage - 2 * len(samples) * step / window


@given(st.floats(0, 9.9), st.floats(8, 29), st.floats(0, MINIMUM - 1), WINDOWS, MODES, st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_always_idle_when_clean_and_low(
    newest: float, every: float, value: float, window: int, mode: str, gpus: int
) -> None:
    samples = [(newest + n * every, value) for n in range(int(window / every) + 3)]
    assert judged(policy(window, MINIMUM, gpus=mode, min_coverage=1), *[samples] * gpus).verdict == "idle"


@given(streams(), streams(), WINDOWS, MODES, st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_order_and_duplicates_do_not_matter(one: list[Sample], two: list[Sample], window: int, mode: str, rng) -> None:
    rule = policy(window, MINIMUM, gpus=mode)
    again = [[*samples, *rng.sample(samples, len(samples) // 2)] for samples in (one, two)]
    for samples in again:
        rng.shuffle(samples)
    assert judged(rule, one, two) == judged(rule, *again)


@given(st.lists(streams(), min_size=2, max_size=3), st.sampled_from([30, 60]), st.floats(0.05, 1))
@settings(max_examples=40, deadline=None)
def test_the_mean_against_a_fine_grid(of_gpus: list[list[Sample]], window: int, coverage: float) -> None:
    """Evaluated point by point by the definition; close to the limit both answers are accepted."""
    found = judged(policy(window, MINIMUM, gpus="mean", min_coverage=coverage), *of_gpus)
    newest = [min(age for age, _ in samples) for samples in of_gpus]
    end = max(newest) if all(age <= SPEAKS_S for age in newest) else 0.0
    step = 0.05
    means = [
        sum(value_at(samples, end + step * (n + 0.5)) for samples in of_gpus) / len(of_gpus)
        for n in range(int(window / step))
    ]
    known = [mean for mean in means if not math.isnan(mean)]
    highest, covered = max(known, default=0.0), len(known) / len(means)
    slack = 4 * sum(map(len, of_gpus)) * step / window
    if highest >= MINIMUM + 1e-3:
        assert found.verdict == "busy"
    elif found.verdict == "idle":
        assert covered >= coverage - slack
    elif found.verdict == "unknown":
        assert covered <= coverage + slack


@given(streams(), st.lists(st.integers(0, 79), max_size=20))
@settings(max_examples=60, deadline=None)
def test_a_series_filled_by_parts_is_the_same(samples: list[Sample], apart: list[int]) -> None:
    """Backfill and the past, mixed in any way."""
    rows = [(NOW - age, PERIOD_S, value, value) for age, value in samples]
    one, other = Series(), Series()
    for row in rows:
        one.put(*row)
    for row in (row for n, row in enumerate(rows) if n in apart):
        other.put(*row)
    other.extend(row for n, row in enumerate(rows) if n not in apart)
    for row in rows[:3]:
        other.put(*row)
    assert [list(c) for c in (one.at, one.mean, one.high)] == [list(c) for c in (other.at, other.mean, other.high)]
    other.trim(NOW - 100)
    assert all(at >= NOW - 100 for at in other.at)
