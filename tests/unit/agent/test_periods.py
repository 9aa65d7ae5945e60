"""Samples of one period, and when a process's utilization is unknown."""

from collections.abc import Mapping

import pytest

from agent.gpus.reader import GpuWork
from agent.process_records import ProcessKey
from agent.sampling.periods import Holder, PeriodAccumulator
from schemas.wire import DeviceFacts, Readings

KEY, OTHER = ProcessKey("i-1", 1, 0), ProcessKey("i-2", 3, 0)
OWNERS = {10: KEY, 11: KEY, 20: OTHER, 30: None}


def facts(utilization: float | None, uuid: str = "GPU-a") -> DeviceFacts:
    return DeviceFacts(uuid=uuid, index=0, model="H100", memory_mib=80, used_mib=7, utilization=utilization)


def work(percent: Mapping[int, float] | None, running: tuple[int, ...] = (10, 11, 20)) -> GpuWork:
    return GpuWork(running=running, percent=None if percent is None else dict(percent))


def own(*readings: tuple[float | None, GpuWork]) -> Readings | None:
    period = PeriodAccumulator()
    for utilization, reading in readings:
        period.add(facts(utilization), reading, OWNERS)
    return period.process(Holder(KEY, ("GPU-a",), 0)).utilization["GPU-a"]


def test_mean_and_maximum_of_the_readings() -> None:
    period = PeriodAccumulator()
    for utilization in (10, None, 30, 80):
        period.add(facts(utilization), GpuWork(), {})
    period.add(facts(None, "GPU-b"), GpuWork(), {})
    (sample,) = period.gpus()  # GPU-b was never read
    assert (sample.uuid, sample.mean, sample.max, sample.used_mib) == ("GPU-a", 40, 80, 7)
    assert PeriodAccumulator().gpus() == ()


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([(95, work({20: 95}))], (0, 0)),  # another instance works; this one was seen and is idle
        ([(95, work({20: 55, 10: 20, 11: 20}))], (40, 40)),  # the sum over its tree
        ([(99, work({10: 80, 11: 80}))], (100, 100)),
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
    period = PeriodAccumulator()
    period.add(facts(95), work({20: 95}), OWNERS)
    period.add(facts(95), work(unowned), {})
    found = period.process(Holder(KEY, ("GPU-a",), 0)).utilization["GPU-a"]
    assert found == (Readings(mean=0, max=0) if known else None)


def test_a_processs_sample_has_every_gpu_that_it_claims() -> None:
    period = PeriodAccumulator()
    period.add(facts(0), GpuWork(), {})
    sample = period.process(Holder(ProcessKey("i", 2, 1), ("GPU-a", "GPU-b"), None))
    assert (sample.instance, sample.epoch, sample.rank, sample.requests) == ("i", 2, 1, None)
    assert sample.utilization == {"GPU-a": Readings(mean=0, max=0), "GPU-b": None}
