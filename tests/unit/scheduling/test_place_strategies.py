"""Which of several places is taken: by strategy, by size, and without GPUs."""

import pytest

from controller.domain.admission import Demand, InstanceLoad
from controller.domain.placement import Ask, Layout, Need, Placed, Strategy
from controller.scheduling.search.place import place
from support.builders.asks import A80, W16, W24A, ask, one, placed
from support.builders.fleet import GIB, Fleet, gpus_of


def test_c36_pack_and_spread_choose_different_gpus() -> None:
    fleet = Fleet().add("w", [W16] * 4).claim("w/1", 2 * GIB).claim("w/3", 4 * GIB)
    assert placed(fleet, ask("q06b", placement={"strategy": "pack"})) == ["w/3"]
    assert placed(fleet, ask("q06b", placement={"strategy": "spread"})) == ["w/0"]


def load(instance: str, deployment: str, worker: str, *gpus: str) -> InstanceLoad:
    return InstanceLoad(instance, deployment, (f"id-{worker}",), gpus)


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ([load("1", "d", "w16x2", "w16x2/0")], "w24a/0"),
        (
            [load("1", "d", "w16x2", "w16x2/0"), load("2", "d", "w24a", "w24a/0")]
            + [load(str(n), "other", "w16x2", "w16x2/1") for n in (3, 4)],
            "w24a/0",
        ),
        ([load("1", "x", "w24a", "w24a/0"), load("2", "x", "w24a", "w24a/0")], "w16x2/0"),
    ],
)
def test_c40_spread_over_workers(loads: list[InstanceLoad], expected: str) -> None:
    inventory = Fleet().add("w24a", [W24A]).add("w16x2", [W16] * 2).inventory()
    inventory.upsert_load(loads)
    assert placed(inventory, ask("q06b", placement={"strategy": "spread"})) == [expected]


def test_c40_spread_over_the_gpus_of_one_host() -> None:
    inventory = Fleet().add("w", [W16] * 2).inventory()
    inventory.upsert_load([load("1", "d", "w", "w/0"), load("2", "x", "w", "w/0")])
    assert placed(inventory, ask("q06b", placement={"strategy": "spread"})) == ["w/1"]
    inventory.upsert_load([load("1", "d", "w", "w/1"), load("2", "x", "w", "w/0"), load("3", "x", "w", "w/0")])
    assert placed(inventory, ask("q06b", placement={"strategy": "spread"})) == ["w/0"]


def test_spread_counts_its_own_instances_before_those_of_others() -> None:
    inventory = Fleet().add("a", [W16]).add("b", [W16]).inventory()
    inventory.upsert_load([load(str(n), "x", "a", "a/0") for n in range(5)])
    batch = [Ask(f"i{n}", "d", (Layout(1, GIB, False),), strategy="spread") for n in range(4)]
    assert [gpus_of(d) for d in place(inventory, batch) if isinstance(d, Placed)] == [
        ["b/0"], ["a/0"], ["b/0"], ["a/0"],
    ]  # fmt: skip


def test_spread_counts_its_own_instances_on_gpus_too() -> None:
    inventory = Fleet().add("a", [W16] * 2).inventory()
    inventory.upsert_load([load(str(n), "x", "a", "a/0") for n in range(5)])
    batch = [Ask(f"i{n}", "d", (Layout(1, GIB, False),), strategy="spread") for n in range(4)]
    assert [gpus_of(d) for d in place(inventory, batch) if isinstance(d, Placed)] == [
        ["a/1"], ["a/0"], ["a/1"], ["a/0"],
    ]  # fmt: skip


def test_pack_keeps_large_free_workers_whole() -> None:
    fleet = Fleet().add("a-whole", [A80] * 4).add("b-broken", [A80] * 4).claim("b-broken/0")
    assert placed(fleet, ask(Need(None), {"gpus": 2})) == ["b-broken/1", "b-broken/2"]
    assert placed(fleet, ask(Need(None), {"gpus": 4})) == [f"a-whole/{i}" for i in range(4)]


def test_pack_takes_the_smallest_gpu_that_is_large_enough() -> None:
    fleet = Fleet().add("a", [A80]).add("b", [W24A]).add("c", [W16])
    assert placed(fleet, ask("s14g", {"exclusive": True})) == ["b/0"]
    assert placed(fleet, ask("q06b")) == ["c/0"]


def test_pack_prefers_a_shared_gpu_where_as_much_is_left_over() -> None:
    fleet = Fleet().add("a", [12 * GIB]).add("b", [16 * GIB]).claim("b/0", 4 * GIB).add("c", [12 * GIB])
    wanted = Ask("i", "d", (Layout(1, 2 * GIB, False),))
    assert placed(fleet, wanted) == ["b/0"]


def test_pack_leaves_the_last_capacity_for_a_known_demand_to_least_fragmentation() -> None:
    for strategy, expected in (("pack", "a/0"), ("least_fragmentation", "b/0")):
        inventory = Fleet().add("a", [W16] * 2).add("b", [W16] * 2, cpus=2).inventory()
        inventory.demand.add(Demand(2, W16, exclusive=True, host_memory_mib=0, cpu_milli=3000), 1)
        inventory.demand.add(Demand(1, 4 * GIB, exclusive=False, host_memory_mib=0, cpu_milli=100), 9)
        wanted = Ask("i", "d", (Layout(1, 4 * GIB, False),), cpu_milli=100, strategy=strategy)
        assert placed(inventory, wanted) == [expected]


@pytest.mark.parametrize(("strategy", "expected"), [("pack", ["a/0", "a/1"]), ("least_fragmentation", ["b/0", "b/1"])])
def test_least_fragmentation_of_two_gpus(strategy: Strategy, expected: list[str]) -> None:
    """Three free GPUs of `b` are of no use to the demand, which needs more CPU than `b` has."""
    inventory = Fleet().add("a", [W16] * 4).add("b", [W16] * 4, cpus=2).inventory()
    inventory.demand.add(Demand(3, W16, exclusive=True, host_memory_mib=0, cpu_milli=3000), 1)
    inventory.demand.add(Demand(1, 4 * GIB, exclusive=False, host_memory_mib=0, cpu_milli=100), 1)
    wanted = Ask("i", "d", (Layout(2, 4 * GIB, False),), cpu_milli=100, strategy=strategy)
    assert placed(inventory, wanted) == expected


def test_least_fragmentation_judges_each_gpu_of_a_worker() -> None:
    """The fuller GPU of `a` is the last that a demand of 10 GiB fits on; `b` is too full for it already."""
    fleet = Fleet().add("a", [16 * GIB] * 2).claim("a/0", 6 * GIB)
    inventory = fleet.add("b", [16 * GIB]).claim("b/0", 15 * GIB // 2).inventory()
    for memory in (10 * GIB, 5 * GIB):
        inventory.demand.add(Demand(1, memory, exclusive=False, host_memory_mib=0, cpu_milli=0), 1)
    assert placed(inventory, Ask("i", "d", (Layout(1, 4 * GIB, False),), strategy="least_fragmentation")) == ["a/1"]


def test_least_fragmentation_of_a_whole_gpu() -> None:
    """The larger GPU is of no use to the demand, which needs more CPU than its worker has."""
    inventory = Fleet().add("a", [16 * GIB]).add("b", [24 * GIB], cpus=2).inventory()
    inventory.demand.add(Demand(1, 4 * GIB, exclusive=False, host_memory_mib=0, cpu_milli=3000), 1)
    for strategy, expected in (("pack", "a/0"), ("least_fragmentation", "b/0")):
        wanted = Ask("i", "d", (Layout(1, 0, True),), cpu_milli=100, strategy=strategy)  # type: ignore[arg-type]
        inventory.begin_pass()
        assert placed(inventory, wanted) == [expected]
        inventory.rollback()


def test_avoided_workers_are_the_last_resort() -> None:
    fleet = Fleet().add("a", [W16]).add("b", [W16])
    avoiding = Ask("i", "d", (Layout(1, GIB, False),), avoid_workers=frozenset({"id-a"}))
    inventory = fleet.inventory()
    assert placed(inventory, avoiding) == ["b/0"]
    nowhere_else = Ask("i", "d", (Layout(1, W16 - GIB, False),), avoid_workers=frozenset({"id-a"}))
    assert placed(inventory, nowhere_else) == ["b/0"]
    assert placed(inventory, nowhere_else) == ["a/0"]


@pytest.mark.parametrize("hosts", [2, 63, 64, 100])
def test_avoided_workers_are_the_last_resort_in_a_fleet_of_any_size(hosts: int) -> None:
    fleet = Fleet()
    for number in range(hosts):
        fleet.add(f"w{number:03}", [W16])
    avoiding = Ask("i", "d", (Layout(1, GIB, False),), avoid_workers=frozenset({"id-w000"}))
    assert placed(fleet.inventory(), avoiding) == ["w001/0"]


def test_an_ask_without_gpus_goes_where_no_free_gpu_needs_the_host() -> None:
    fleet = Fleet().add("a", [W16], host_memory=8 * GIB).add("b", [W16], host_memory=64 * GIB).claim("b/0")
    decision = one(fleet, Ask("i", "d", (Layout(0, 0, False),), host_memory_mib=6 * GIB))
    assert isinstance(decision, Placed)
    assert decision.worker_id == "id-b"


def test_without_gpus_only_the_host_is_claimed() -> None:
    inventory = Fleet().add("a", cpus=4, host_memory=8 * GIB).add("b", cpus=4, host_memory=64 * GIB).inventory()
    wanted = Ask("i", "d", (Layout(0, 0, False),), host_memory_mib=6 * GIB, cpu_milli=1500)
    decision = one(inventory, wanted)
    assert isinstance(decision, Placed)
    assert [(c.device, c.memory_mib, c.cpu_milli, c.exclusive, c.position) for c in decision.claims] == [
        ("host-a", 6 * GIB, 1500, False, 0)
    ]
    second = one(inventory, wanted)
    assert isinstance(second, Placed)
    assert second.worker_id == "id-b"


def test_an_ask_that_claims_nothing_goes_where_the_fewest_run() -> None:
    inventory = Fleet().add("a").add("b").inventory()
    nothing = (Layout(0, 0, False),)
    decisions = place(inventory, [Ask(str(n), "d", nothing) for n in range(4)])
    assert [d.worker_id for d in decisions if isinstance(d, Placed)] == ["id-a", "id-b", "id-a", "id-b"]
