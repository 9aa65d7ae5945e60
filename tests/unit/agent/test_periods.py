"""What the readings of one sampling period come to, and what cannot be known of a process."""

from collections.abc import Mapping

import pytest

from agent.gpus.reader import GpuWork
from agent.process_records import ProcessKey
from agent.sampling.periods import Holder, PeriodAccumulator
from schemas.wire import DeviceFacts, Readings

OURS, OTHER = ProcessKey("i-1", 1, 0), ProcessKey("i-2", 3, 0)
OWNERS = {10: OURS, 11: OURS, 20: OTHER, 30: None}


def facts(utilization: float | None, uuid: str = "GPU-a") -> DeviceFacts:
    return DeviceFacts(uuid=uuid, index=0, model="H100", memory_mib=80, used_mib=7, utilization=utilization)


def work(percent: Mapping[int, float] | None, running: tuple[int, ...] = (10, 11, 20)) -> GpuWork:
    return GpuWork(running=running, percent=None if percent is None else dict(percent))


def own(*readings: tuple[float | None, GpuWork]) -> Readings | None:
    period = PeriodAccumulator()
    for utilization, told in readings:
        period.add(facts(utilization), told, OWNERS)
    return period.process(Holder(OURS, ("GPU-a",), 0)).utilization["GPU-a"]


def test_mean_and_maximum_of_what_was_read() -> None:
    period = PeriodAccumulator()
    for utilization in (10, None, 30, 80):
        period.add(facts(utilization), GpuWork(), {})
    period.add(facts(None, "GPU-b"), GpuWork(), {})
    (sample,) = period.gpus()  # of the other one nothing is known, and nothing is told
    assert (sample.uuid, sample.mean, sample.max, sample.used_mib) == ("GPU-a", 40, 80, 7)
    assert PeriodAccumulator().gpus() == ()


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([(95, work({20: 95}))], (0, 0)),  # the neighbour works, ours was seen and does nothing
        ([(95, work({20: 55, 10: 20, 11: 20}))], (40, 40)),  # the whole tree
        ([(99, work({10: 80, 11: 80}))], (100, 100)),
        ([(50, work({10: 40})), (50, work({20: 50})), (0, work({}))], (20, 40)),  # what was not told is not counted
        ([(95, work({30: 95}))], (0, 0)),  # a stranger works
        ([(95, work({10: 0, 77: 95}))], None),  # one that has ended, and may have been ours
        ([(95, work({10: 5, 77: 0}))], (5, 5)),  # one that did nothing, whoever's it was
        ([(0, work(None)), (0, work(None))], (0, 0)),  # nobody did anything, whatever the driver can tell
        ([(0, GpuWork())], (0, 0)),
        ([(95, work(None))], None),  # the driver does not tell
        ([(95, work({}))], None),  # it told of nobody
        ([(95, work({20: 95}, running=(20,)))], None),  # ours was not seen: are its pids those that we know?
        ([(95, work({77: 95}, running=(77, 78)))], None),  # another namespace's pids
        ([(None, work({10: 40}))], None),  # not read at all
    ],
)
def test_what_a_process_did_itself(
    readings: list[tuple[float | None, GpuWork]], expected: tuple[float, float] | None
) -> None:
    found = own(*readings)
    assert (None if found is None else (found.mean, found.max)) == expected


@pytest.mark.parametrize(("unowned", "known"), [({10: 95}, False), ({10: 0}, True), ({}, True), (None, True)])
def test_figures_of_which_nobody_knows_whose_they_are_are_not_zero(
    unowned: Mapping[int, float] | None, known: bool
) -> None:
    """While /proc does not answer, ours may be the one that works."""
    period = PeriodAccumulator()
    period.add(facts(95), work({20: 95}), OWNERS)
    period.add(facts(95), work(unowned), {})
    found = period.process(Holder(OURS, ("GPU-a",), 0)).utilization["GPU-a"]
    assert found == (Readings(mean=0, max=0) if known else None)


def test_a_process_names_every_gpu_that_it_claims() -> None:
    period = PeriodAccumulator()
    period.add(facts(0), GpuWork(), {})
    sample = period.process(Holder(ProcessKey("i", 2, 1), ("GPU-a", "GPU-b"), None))
    assert (sample.instance, sample.epoch, sample.rank, sample.requests) == ("i", 2, 1, None)
    assert sample.utilization == {"GPU-a": Readings(mean=0, max=0), "GPU-b": None}
