"""Properties of verdicts, whatever samples arrive in whatever order."""

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from agent.gpus.reader import GpuWork
from agent.sampling.periods import PeriodAccumulator
from controller.decide.policies.idle_verdict import judge
from controller.domain.telemetry.series import MeanSeries, Series
from controller.domain.telemetry.utilization import InstanceUse, Verdict
from schemas.manifest.policy import UtilizationPolicy
from schemas.wire import ReportedGpu
from support.builders.telemetry import NOW, PERIOD_S, gpu, policy, use
from support.profiles import examples

Sample = tuple[float, float]  # age in seconds, highest utilization
MINIMUM = 50
WINDOWS = st.sampled_from([30, 60, 300])
MODES = st.sampled_from(["all", "any", "mean"])
FRESH_S = 2 * PERIOD_S


@st.composite
def streams(draw: st.DrawFn) -> list[Sample]:
    """Samples with gaps, at skewed times, sometimes duplicated; half of all streams are low throughout.

    Ages are multiples of 1/64 s, which no sum with a time of day rounds: at a window's edge rounding would decide.
    """
    values = st.floats(0, draw(st.sampled_from([MINIMUM - 1, 100])), allow_nan=False, width=32)
    age, samples = draw(st.integers(0, 60 * 64)) / 64, list[Sample]()
    while age < 700 and len(samples) < 80:
        samples.append((age, draw(values)))
        age += draw(st.sampled_from([200, 10, 10, 10, 10, 9, 11, 29, 45, 0.5])) + draw(st.integers(0, 25)) / 64
    return draw(st.permutations(samples + samples[: draw(st.integers(0, 5))]))


def judged(rule: UtilizationPolicy, *of_gpus: Sequence[Sample]) -> Verdict:
    return judge(rule, use(*(gpu(f"g{n}", samples) for n, samples in enumerate(of_gpus))), NOW)


def window_end(samples: Sequence[Sample]) -> float:
    """The window's end, as an age."""
    newest = min(age for age, _ in samples)
    return newest if newest <= FRESH_S else 0.0


def value_at(samples: Sequence[Sample], age: float) -> float:
    """The step function of one GPU, by the definition; NaN where it is uncovered."""
    by_age = sorted({a: max(v for b, v in samples if b == a) for a, _ in samples}.items())
    speaking = [(a, v) for a, v in by_age if a <= age]
    if not speaking:
        return math.nan
    at, value = speaking[-1]
    older = [a for a, _ in by_age if a > at]
    return value if age < min([at + PERIOD_S, *older]) else math.nan


@given(streams(), WINDOWS, st.sampled_from(["all", "any"]), st.floats(0.5, 1))
@examples(150)
def test_never_idle_with_a_sample_at_or_above_the_minimum_in_the_window(
    samples: list[Sample], window: int, mode: str, coverage: float
) -> None:
    found = judged(policy(window, MINIMUM, gpus=mode, min_coverage=coverage), samples)
    end = window_end(samples)
    if any(end <= age < end + window and value >= MINIMUM for age, value in samples):
        assert found.verdict == "busy"
    else:
        assert found.verdict != "busy"


@given(streams(), WINDOWS, MODES, st.floats(0.5, 1))
@examples(150)
def test_never_idle_under_coverage(samples: list[Sample], window: int, mode: str, coverage: float) -> None:
    found = judged(policy(window, MINIMUM, gpus=mode, min_coverage=coverage), samples)
    if found.verdict == "idle":
        end, step = window_end(samples), 0.25
        points = [end + step * (n + 0.5) for n in range(int(window / step))]
        covered = sum(not math.isnan(value_at(samples, age)) for age in points) / len(points)
        # Each edge of what is covered falls within one step of the grid.
        assert covered >= coverage - 2 * len(samples) * step / window


@given(st.floats(0, 9.9), st.floats(8, PERIOD_S), st.floats(0, MINIMUM - 1), WINDOWS, MODES, st.integers(1, 3))
@examples(100)
def test_always_idle_when_clean_and_low(
    newest: float, every: float, value: float, window: int, mode: str, gpus: int
) -> None:
    samples = [(newest + n * every, value) for n in range(int(window / every) + 3)]
    assert judged(policy(window, MINIMUM, gpus=mode, min_coverage=1), *[samples] * gpus).verdict == "idle"


@given(streams(), streams(), WINDOWS, MODES, st.randoms(use_true_random=False))
@examples(100)
def test_order_and_duplicates_do_not_matter(one: list[Sample], two: list[Sample], window: int, mode: str, rng) -> None:
    rule = policy(window, MINIMUM, gpus=mode)
    again = [[*samples, *rng.sample(samples, len(samples) // 2)] for samples in (one, two)]
    for samples in again:
        rng.shuffle(samples)
    assert judged(rule, one, two) == judged(rule, *again)


@given(st.lists(streams(), min_size=2, max_size=3), st.sampled_from([30, 60]), st.floats(0.5, 1))
@examples(40)
def test_the_mean_against_a_fine_grid(of_gpus: list[list[Sample]], window: int, coverage: float) -> None:
    """Evaluated point by point by the definition; close to the limit both answers are accepted."""
    found = judged(policy(window, MINIMUM, gpus="mean", min_coverage=coverage), *of_gpus)
    newest = [min(age for age, _ in samples) for samples in of_gpus]
    stale = any(age > FRESH_S for age in newest)
    end = 0.0 if stale else max(newest)
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
    elif stale:
        assert found.verdict == "unknown"
    elif found.verdict == "idle":
        assert covered >= coverage - slack
    elif found.verdict == "unknown":
        assert covered <= coverage + slack


@given(streams(), st.lists(st.integers(0, 79), max_size=20))
@examples(60)
def test_a_series_filled_by_parts_is_the_same(samples: list[Sample], apart: list[int]) -> None:
    """Backfill and the past, mixed in any way."""
    rows = [(NOW - age, PERIOD_S, value, value, PERIOD_S - (age % 3)) for age, value in samples]
    one, other = Series(), Series()
    for row in rows:
        one.put(*row)
    for row in (row for n, row in enumerate(rows) if n in apart):
        other.put(*row)
    other.extend(row for n, row in enumerate(rows) if n not in apart)
    for row in rows[:3]:
        other.put(*row)
    columns = [[list(c) for c in (x.at, x.mean, x.high)] for x in (one, other)]
    assert columns[0] == columns[1]
    assert list(one.since) == pytest.approx(list(other.since), abs=1e-3)
    other.trim(NOW - 100)
    assert all(at >= NOW - 100 for at in other.at[1:])  # one older sample shows whether a gap follows


@dataclass(frozen=True)
class Reading:
    """When one GPU was read (seconds, each low or high), and the samples that its agent has sent of that."""

    times: tuple[float, ...]
    high: frozenset[float]
    period_s: float
    samples: tuple[tuple[float, float, float], ...]  # at, read_s, highest

    @property
    def newest(self) -> float:
        return max(at for at, _, _ in self.samples)

    @property
    def spans(self) -> list[tuple[float, float]]:
        """The seconds that were really read, by the definition."""
        return [(a, b) for a, b in itertools.pairwise(self.times) if b - a <= 2 and b <= self.newest]


SPAN_S = 420.0


@st.composite
def readings(draw: st.DrawFn) -> Reading:
    """A GPU that is read each second, with stops of any length and phase, sampled with any period at any phase."""
    period_s = draw(st.sampled_from([2.0, 5.0, 10.0, 20.0, 29.0, 45.0, 60.0]))
    stops = draw(st.lists(st.tuples(st.floats(0, SPAN_S), st.floats(0.2, 150)), max_size=5))
    phase, high_share = draw(st.floats(0, 1)), draw(st.sampled_from([0.0, 0.0, 0.02]))
    rng = draw(st.integers(0, 2**20).map(random.Random))
    ticks = (phase + n for n in range(int(SPAN_S)))
    times = [t for t in ticks if not any(a <= t < a + length for a, length in stops)]
    times = times or [0.0]
    high = frozenset(t for t in times if rng.random() < high_share)
    accumulator, samples = PeriodAccumulator(), list[tuple[float, float, float]]()
    close_at = draw(st.floats(0, period_s))
    for at in [*times, math.inf]:
        while at > close_at:  # the agent closes its periods whether or not it could read
            samples += [(p.end_s, p.read_s, p.gpus()[0].max) for p in accumulator.close()]
            if close_at > SPAN_S:
                break
            close_at += period_s
        if at < math.inf:
            percent = 90.0 if at in high else 3.0
            facts = ReportedGpu(uuid="GPU-a", index=0, model="m", memory_mib=1, utilization=percent)
            accumulator.add(at, facts, GpuWork(), {})
    return Reading(tuple(times), high, period_s, tuple(samples))


def as_use(of_gpus: Sequence[Reading], shift: float, rng: random.Random) -> InstanceUse:
    """The telemetry of that, in any order, with repetitions. `shift` is what to add to a time."""
    gpus = []
    for n, reading in enumerate(of_gpus):
        series, samples = Series(), [*reading.samples, *reading.samples[:3]]
        rng.shuffle(samples)
        for at, read_s, highest in samples:
            series.put(shift + at, reading.period_s, highest, highest, read_s)
        gpus.append(gpu(f"g{n}", series))
    return use(*gpus, ran_for_s=10_000)


def read_s(of_gpus: Sequence[Reading], begin: float, end: float) -> float:
    """The seconds between these times in which all of the GPUs were read, counted naively."""
    edges = sorted({begin, end, *(t for one in of_gpus for span in one.spans for t in span if begin < t < end)})
    return sum(
        b - a
        for a, b in itertools.pairwise(edges)
        if all(any(s <= (a + b) / 2 <= e for s, e in one.spans) for one in of_gpus)
    )


@given(
    st.lists(readings(), min_size=1, max_size=3),
    st.floats(0, 45),
    st.sampled_from([30, 60, 180]),
    st.sampled_from(["all", "mean"]),
    st.floats(0.5, 1),
    st.integers(0, 2**20).map(random.Random),
)
@examples(40, suppress_health_check=[HealthCheck.too_slow])
def test_only_seconds_that_were_really_read_count(
    of_gpus: list[Reading], late_s: float, window: int, mode: str, coverage: float, rng: random.Random
) -> None:
    """Idle needs `coverage` of the window read, a fresh newest sample of each GPU, and no high reading."""
    now = max(one.newest for one in of_gpus) + late_s
    rule = policy(window, MINIMUM, gpus=mode, min_coverage=coverage, ignore_requests=True)
    found = judge(rule, as_use(of_gpus, NOW - now, rng), NOW)
    fresh = all(now - one.newest <= max(min(2 * one.period_s, 30), 5) + 1e-3 for one in of_gpus)
    if mode == "mean":
        end = min(one.newest for one in of_gpus) if fresh else now
        covered = read_s(of_gpus, end - window, end)
    else:
        ends = [one.newest if now - one.newest <= max(min(2 * one.period_s, 30), 5) else now for one in of_gpus]
        covered = min(read_s([one], end - window, end) for one, end in zip(of_gpus, ends, strict=True))
    enough = coverage * window
    if found.verdict == "idle":
        assert fresh
        assert covered >= enough - 0.01
        low_since = found.low_since
        assert low_since is not None
        for one in of_gpus:  # nothing is below since before the last gap
            gaps = [b for a, b in itertools.pairwise(one.times) if b - a > 2.01 and b <= one.newest - 0.01]
            if mode == "all":
                assert low_since >= max(gaps, default=-1e9) + NOW - now - 0.01
    elif not any(one.high for one in of_gpus) and fresh:
        assert covered <= enough + 0.01, found
    if mode == "all":
        for one, end in zip(of_gpus, ends, strict=True):
            if any(end - window + 1e-3 < at <= one.newest for at in one.high):
                assert found.verdict == "busy"
    if found.verdict == "busy":
        assert any(one.high for one in of_gpus)


@given(st.lists(readings(), min_size=1, max_size=3), st.integers(0, 2**20).map(random.Random), st.integers(1, 6))
@examples(25, suppress_health_check=[HealthCheck.too_slow])
def test_a_mean_that_is_kept_as_samples_arrive_is_the_same(
    of_gpus: list[Reading], rng: random.Random, looks: int
) -> None:
    """In any order, with any number of looks in between."""
    arrivals = [(n, *sample) for n, one in enumerate(of_gpus) for sample in one.samples]
    arrivals.sort(key=lambda a: a[1] + rng.choice([0, 0, 0, 15]))
    series = [Series() for _ in of_gpus]
    kept = MeanSeries(series)
    for k, (n, at, length, highest) in enumerate(arrivals):
        series[n].put(at, of_gpus[n].period_s, highest, highest, length)
        if k % looks == 0:
            kept.read()
    one, other = kept.read(), MeanSeries(series).read()
    for moment in (SPAN_S * n / 400 + 0.001 for n in range(400)):
        assert mean_at(one, moment) == mean_at(other, moment)


def mean_at(series: Series, moment: float) -> float | None:
    found = [float(h) for s, a, h in zip(series.since, series.at, series.high, strict=True) if s < moment <= a]
    assert len(found) <= 1
    return found[0] if found else None
