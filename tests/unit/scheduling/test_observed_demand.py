"""The demand that placement knows: live instances and the latest thousand that have ended, in coarse steps."""

from controller.domain.admission import Demand
from controller.scheduling.inventory.tables import ObservedDemand

ONE = Demand(1, 100, exclusive=False, host_memory_mib=0, cpu_milli=0)
TWO = Demand(2, 100, exclusive=False, host_memory_mib=0, cpu_milli=0)


def test_demand_is_known_once_it_settles_and_each_change_has_a_version() -> None:
    demand = ObservedDemand()
    demand.settle()
    assert (demand.known, demand.version) == ({}, 0)
    demand.add(ONE)
    demand.add(TWO, 3)
    assert (demand.known, demand.version) == ({}, 0)
    demand.settle()
    demand.settle()
    assert (demand.known, demand.version) == ({ONE: 1, TWO: 3}, 1)


def test_few_changes_of_many_are_not_followed_at_once() -> None:
    demand = ObservedDemand()
    demand.add(ONE, 10_000)
    demand.settle()
    demand.add(TWO)
    demand.settle()
    assert (demand.known, demand.version) == ({ONE: 10_000}, 1)
    demand.add(TWO, 9_999)
    demand.settle()
    assert (demand.known, demand.version) == ({ONE: 10_000, TWO: 10_000}, 2)


def test_ends_count_as_starts_do() -> None:
    """A tenth of the instances must have changed."""
    demand = ObservedDemand()
    demand.add(ONE, 11_000)
    demand.settle()
    for _ in range(1_000 + 999):
        demand.remove(ONE)
    demand.settle()
    assert (demand.known, demand.version) == ({ONE: 11_000}, 1)
    demand.remove(ONE)
    demand.settle()
    assert (demand.known, demand.version) == ({ONE: 10_000}, 2)


def test_an_instance_that_has_ended_counts_until_a_thousand_others_have() -> None:
    demand = ObservedDemand()
    demand.add(TWO)
    demand.add(ONE, 1_000)
    demand.remove(TWO)
    for _ in range(999):
        demand.remove(ONE)
    demand.settle()
    assert demand.known == {TWO: 1, ONE: 1_000}
    demand.remove(ONE)
    demand.add(ONE, 5_000)
    demand.settle()
    assert demand.known == {ONE: 6_000}
    for _ in range(2):
        demand.remove(ONE)
    demand.add(TWO, 9_000)
    demand.settle()
    assert demand.known == {ONE: 5_998, TWO: 9_000}
