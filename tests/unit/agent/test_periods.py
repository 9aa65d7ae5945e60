"""Samples of one period, and when a process's utilization is unknown."""

from collections.abc import Mapping

import pytest

from agent.gpus.reader import GpuWork
from agent.sampling.periods import Holder, PeriodAccumulator
from agent.state.process_records import ProcessKey
from schemas.wire import Readings, ReportedGpu

KEY, OTHER = ProcessKey("i-1", 1, 0), ProcessKey("i-2", 3, 0)
OWNERS = {10: KEY, 11: KEY, 20: OTHER, 30: None}


def facts(utilization: float | None, uuid: str = "GPU-a") -> ReportedGpu:
    return ReportedGpu(uuid=uuid, index=0, model="H100", memory_mib=80, used_mib=7, utilization=utilization)


def work(percent: Mapping[int, float] | None, running: tuple[int, ...] = (10, 11, 20)) -> GpuWork:
    return GpuWork(running=running, percent=None if percent is None else dict(percent))


def own(*readings: tuple[float | None, GpuWork]) -> Readings | None:
    readings_so_far = PeriodAccumulator()
    for at, (utilization, reading) in enumerate(readings):
        readings_so_far.add(at, facts(utilization), reading, OWNERS)
    periods = readings_so_far.close()
    sample = periods[0].process(Holder(KEY, ("GPU-a",), 0)) if periods else None
    return sample.utilization["GPU-a"] if sample is not None else None


def test_mean_and_maximum_of_the_readings() -> None:
    readings = PeriodAccumulator()
    for at, utilization in enumerate((10, None, 30, 80)):
        readings.add(at, facts(utilization), GpuWork(), {})
    readings.add(3, facts(None, "GPU-b"), GpuWork(), {})
    (period,) = readings.close()
    (sample,) = period.gpus()  # GPU-b was never read
    assert (sample.uuid, sample.mean, sample.max, sample.used_mib) == ("GPU-a", 40, 80, 7)
    assert (period.end_s, period.read_s) == (3, 3)
    assert readings.close() == []
    assert PeriodAccumulator().close() == []


def read_at(*times: float, close_at: tuple[float, ...] = ()) -> list[tuple[float, float]]:
    """What the samples of one GPU speak for that was read at these times; periods close after those times."""
    readings, spoken = PeriodAccumulator(), list[tuple[float, float]]()
    for at in times:
        readings.add(at, facts(5), GpuWork(), {})
        if at in close_at:
            spoken += [(p.end_s - p.read_s, p.end_s) for p in readings.close()]
    return spoken + [(p.end_s - p.read_s, p.end_s) for p in readings.close()]


@pytest.mark.parametrize(
    ("times", "close_at", "spoken"),
    [
        ((0, 1, 2, 3, 4), (2,), [(0, 2), (2, 4)]),  # periods close without a gap
        ((0, 1, 2, 5, 6), (), [(0, 2), (5, 6)]),  # cut where reading stopped
        ((0, 1, 2, 4, 5), (), [(0, 5)]),  # two seconds are no stop
        ((0, 1, 2, 4.1, 5), (2,), [(0, 2), (4.1, 5)]),  # a stop at the edge of two periods
        ((0, 10, 20), (), [(0, 0), (10, 10), (20, 20)]),  # a reading by itself speaks for no time
        ((0, 1, 40, 41, 80, 81), (1,), [(0, 1), (40, 41), (80, 81)]),  # frozen for longer than a period
    ],
)
def test_a_period_is_cut_where_reading_stopped(
    times: tuple[float, ...], close_at: tuple[float, ...], spoken: list[tuple[float, float]]
) -> None:
    found = read_at(*times, close_at=close_at)
    assert [round(edge, 6) for piece in found for edge in piece] == [edge for piece in spoken for edge in piece]


def test_gpus_are_cut_each_by_itself() -> None:
    readings = PeriodAccumulator()
    for at in range(10):
        readings.add(at, facts(5), GpuWork(), {})
        readings.add(at, facts(None if 3 <= at <= 6 else 9, "GPU-b"), GpuWork(), {})
        readings.add(at, facts(7, "GPU-c"), GpuWork(), {})
    found = [(p.end_s, p.read_s, [g.uuid for g in p.gpus()]) for p in readings.close()]
    assert found == [(2, 2, ["GPU-b"]), (9, 9, ["GPU-a", "GPU-c"]), (9, 2, ["GPU-b"])]


@pytest.mark.parametrize("percent", [101, -1, 2**32, float("nan")])
def test_u48_an_impossible_figure_of_a_process_is_unknown(percent: float) -> None:
    assert own((95, work({10: percent}))) is None
    assert own((95, work({20: 95})), (95, work({20: percent}))) is None


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([(95, work({20: 95}))], (0, 0)),  # another instance works; this one was seen and is idle
        ([(95, work({20: 55, 10: 20, 11: 20}))], (40, 40)),  # the sum over its tree
        ([(99, work({10: 80, 11: 80}))], (100, 100)),  # one figure for each process of the tree
        ([(50, work({10: 40})), (50, work({20: 50})), (0, work({}))], (20, 40)),  # an empty reading does not count
        ([(95, work({30: 95}))], (0, 0)),  # a process outside Gpuward works
        ([(95, work({10: 0, 77: 95}))], None),  # a working process has exited, and its owner is unknown
        ([(95, work({10: 5, 77: 0}))], (5, 5)),  # an idle process has exited, and its owner is unknown
        ([(0, work(None)), (0, work(None))], (0, 0)),  # no load: the driver's figures are not needed
        ([(0, GpuWork())], (0, 0)),
        ([(95, work(None))], None),  # not reported by the driver
        ([(95, work({}))], None),  # no process was reported
        ([(95, work({20: 95}, running=(20,)))], None),  # not seen on the GPU: the driver's pids may not match
        ([(95, work({77: 95}, running=(77, 78)))], None),  # pids of another namespace
        ([(None, work({10: 40}))], None),  # never read
    ],
)
def test_a_processs_own_utilization(
    readings: list[tuple[float | None, GpuWork]], expected: tuple[float, float] | None
) -> None:
    found = own(*readings)
    assert (None if found is None else (found.mean, found.max)) == expected


@pytest.mark.parametrize(("unowned", "known"), [({10: 95}, False), ({10: 0}, True), ({}, True), (None, True)])
def test_utilization_is_unknown_while_a_working_process_has_no_owner(
    unowned: Mapping[int, float] | None, known: bool
) -> None:
    """While /proc does not answer, the working process may be this one."""
    readings = PeriodAccumulator()
    readings.add(0, facts(95), work({20: 95}), OWNERS)
    readings.add(1, facts(95), work(unowned), {})
    (period,) = readings.close()
    sample = period.process(Holder(KEY, ("GPU-a",), 0))
    assert sample is not None
    found = sample.utilization["GPU-a"]
    assert found == (Readings(mean=0, max=0) if known else None)


def test_a_processs_sample_has_the_gpus_that_were_read() -> None:
    readings = PeriodAccumulator()
    readings.add(0, facts(0), GpuWork(), {})
    (period,) = readings.close()
    sample = period.process(Holder(ProcessKey("i", 2, 1), ("GPU-a", "GPU-b"), None, 3))
    assert sample is not None
    assert (sample.instance, sample.epoch, sample.rank, sample.requests, sample.arrived) == ("i", 2, 1, None, 3)
    assert sample.utilization == {"GPU-a": Readings(mean=0, max=0)}
    assert period.process(Holder(ProcessKey("i", 2, 1), ("GPU-b",), None)) is None
