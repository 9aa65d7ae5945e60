"""Which victims are chosen: the fewest whatever the fleet's size, servers before tasks, movable before immovable."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from controller.domain.admission import Holder, Holders, InstanceLoad, PendingInstance
from controller.domain.placement import Ask, Layout, PlannedClaim
from controller.scheduling.admission.admit import ReserveTimes, admit
from controller.scheduling.admission.consolidate import Movable, consolidate
from controller.scheduling.admission.victims import find_victims, spared
from support.builders.fleet import GIB, Fleet

G80 = 80 * GIB


def held(fleet: Fleet, name: str, gib: int, *gpus: str, priority: int = 10, **more: float | bool) -> Holder:
    """A holder of so much of each of these GPUs."""
    for gpu in gpus:
        fleet.claim(gpu, gib * GIB)
    workers = frozenset(f"id-{gpu.partition('/')[0]}" for gpu in gpus)
    claims = [PlannedClaim(gpu, gib * GIB, 0, False, n) for n, gpu in enumerate(gpus)]
    claims += [PlannedClaim(f"host-{worker.removeprefix('id-')}", 0, 0, False, 0) for worker in sorted(workers)]
    return Holder(name, priority, 0.0, workers, tuple(claims), **more)  # type: ignore[arg-type] # fields


def ask(gib: int, gpus: int = 1, *, exclusive: bool = False, workers: int = 1) -> Ask:
    return Ask("p", "d-p", (Layout(gpus, gib * GIB, exclusive, workers),))


def names(fleet: Fleet, wanted: Ask, holders: list[Holder]) -> list[str]:
    found = find_victims(fleet.inventory(), wanted, holders)
    assert found is not None
    return [one.instance for one in found.victims]


@pytest.mark.parametrize("hosts", [3, 13, 100, 300])
def test_the_fewest_whatever_the_fleets_size(hosts: int) -> None:
    """Every host but the last, by name, has five in the way of four GPUs; they lack no more GPUs than the last."""
    fleet, holders = Fleet(), []
    for n in range(hosts):
        fleet.add(f"w{n:03}", [G80] * 4)
        if n < hosts - 1:
            holders += [held(fleet, f"s{n}-{m}", 15, f"w{n:03}/0") for m in range(5)]
            fleet.claim(f"w{n:03}/1", G80)
        else:
            holders.append(held(fleet, "single", 70, f"w{n:03}/0"))
            fleet.claim(f"w{n:03}/1", G80)
    assert names(fleet, ask(75, 3), holders) == ["single"]


def test_the_fewest_of_a_large_fleet_where_whole_gpus_are_needed() -> None:
    """Elsewhere three are in the way on each of two GPUs, next to an instance of more priority that spans two GPUs."""
    fleet, holders = Fleet(), []
    for n in range(1_100):
        fleet.add(f"w{n:04}", [G80] * 4)
        holders += [held(fleet, f"s{n}-{m}", 20, f"w{n:04}/{m // 3}") for m in range(6)]
        holders.append(held(fleet, f"wide{n}", 80, f"w{n:04}/2", f"w{n:04}/3", priority=99))
    fleet.add("x", [G80] * 2)
    holders += [held(fleet, f"x{m}", 20, f"x/{m // 2}") for m in range(4)]
    assert names(fleet, ask(0, 2, exclusive=True), holders) == ["x0", "x1", "x2", "x3"]


def test_the_fewest_where_several_gpus_need_different_numbers() -> None:
    fleet = Fleet().add("a", [G80] * 4)
    holders = [held(fleet, f"small{n}", 20, "a/0") for n in range(4)]
    holders += [held(fleet, "pair", 80, "a/1", "a/2"), held(fleet, "one", 80, "a/3")]
    assert names(fleet, ask(80, 1), holders) == ["one"]
    assert names(fleet, ask(80, 2), holders) == ["pair"]
    assert names(fleet, ask(80, 3), holders) == ["one", "pair"]


@pytest.mark.parametrize(
    ("left", "right", "victim"),
    [
        ({"task": True}, {}, "right"),
        ({"movable": False}, {}, "right"),
        ({"movable": False}, {"task": True}, "right"),
        ({"movable": False, "priority": 9}, {}, "left"),
        ({"task": True, "lost_s": 60.0}, {"task": True, "lost_s": 50.0}, "right"),
        ({"task": True, "lost_s": 60.0}, {"task": True, "lost_s": 70.0}, "left"),
        ({"task": True, "priority": 9, "lost_s": 900.0}, {}, "left"),
    ],
)
def test_of_two_holders(left: dict[str, float], right: dict[str, float], victim: str) -> None:
    fleet = Fleet().add("a", [G80]).add("b", [G80])
    holders = [held(fleet, "left", 80, "a/0", **left), held(fleet, "right", 80, "b/0", **right)]  # type: ignore[arg-type]
    assert names(fleet, ask(80), holders) == [victim]


def test_of_equal_priorities_the_fewest_immovable_of_the_highest_level() -> None:
    """They decide before the number of victims, and immovable ones of lower priorities do not count among them."""
    fleet = Fleet().add("a", [G80]).add("b", [G80])
    holders = [held(fleet, "top", 26, "a/0", movable=False)]
    holders += [held(fleet, f"low{n}", 26, "a/0", movable=False, priority=9) for n in range(2)]
    holders += [held(fleet, f"both{n}", 39, "b/0", movable=False) for n in range(2)]
    assert names(fleet, ask(79), holders) == ["low0", "low1", "top"]


def test_a_task_weighs_as_much_as_two_servers() -> None:
    fleet = Fleet().add("a", [G80]).add("b", [G80])
    holders = [held(fleet, "task", 80, "a/0", task=True, lost_s=5.0)]
    two = [held(fleet, f"s{n}", 40, "b/0") for n in range(2)]
    assert names(fleet, ask(80), [*holders, *two]) == ["s0", "s1"]
    fleet = Fleet().add("a", [G80]).add("b", [G80])
    holders = [held(fleet, "task", 80, "a/0", task=True, lost_s=5.0)]
    assert names(fleet, ask(80), [*holders, *(held(fleet, f"s{n}", 26, "b/0") for n in range(3))]) == ["task"]


def test_a_victim_younger_than_its_minimum_runtime_is_spared() -> None:
    fleet = Fleet().add("a", [G80]).add("b", [G80])
    young = held(fleet, "young", 80, "a/0", priority=1, protected=True)
    other = held(fleet, "other", 80, "b/0", priority=9)
    waiting = [PendingInstance(ask(80), 50, preempt=True)]
    (found,) = admit(fleet.inventory(), waiting, Holders((young, other)), reserve=ReserveTimes())
    assert [one.instance for one in found.victims] == ["other"]
    (none,) = admit(fleet.inventory(), waiting, Holders((young,)), reserve=ReserveTimes())
    assert none.victims == ()


def test_many_equal_sites_are_cut_after_the_order_by_lost_work() -> None:
    fleet, holders = Fleet(), []
    for n in range(200):
        fleet.add(f"w{n:03}", [G80])
        holders.append(held(fleet, f"t{n}", 80, f"w{n:03}/0", task=True, lost_s=1000.0 - n))
    assert names(fleet, ask(80), holders) == ["t199"]


def movable(one: Holder, gib: int, **more: object) -> Movable:
    fields = {"strategy": "pack"} | more
    wanted = replace(ask(gib), instance=one.instance, deployment_uid="d", **fields)  # type: ignore[arg-type] # fields
    return Movable(one.instance, tuple(one.workers), one.claims, wanted, one.priority)


def test_a_relocation_moves_one_rather_than_five_among_many_hosts() -> None:
    fleet, some = Fleet(), []
    for n in range(20):
        fleet.add(f"w{n:02}", [G80])
        some += [movable(held(fleet, f"s{n}-{m}", 4, f"w{n:02}/0"), 4) for m in range(5)]
    fleet.add("x", [G80])
    some.append(movable(held(fleet, "single", 10, "x/0"), 10))
    plan = consolidate(fleet.inventory(), [ask(75)], some)
    assert [one.instance for one in plan.relocations] == ["single"]


@pytest.mark.parametrize(("priorities", "moved"), [({"p": 9}, []), ({"p": 10}, ["one"]), (None, ["one"])])
def test_a_relocation_touches_no_higher_priority_unless_asked(
    priorities: dict[str, int] | None, moved: list[str]
) -> None:
    fleet = Fleet().add("a", [G80]).add("b", [G80])
    one, two = held(fleet, "one", 10, "a/0"), held(fleet, "two", 50, "b/0", priority=99)
    some = [movable(one, 10), movable(two, 50)]
    plan = consolidate(fleet.inventory(), [ask(80)], some, priorities=priorities)
    assert [relocation.instance for relocation in plan.relocations] == moved


@pytest.mark.parametrize(("strategy", "moved"), [("spread", []), ("pack", ["r0"])])
def test_spread_stays_spread(strategy: str, moved: list[str]) -> None:
    """Only the worker of the other replica has capacity for the replacement."""
    fleet = Fleet().add("a", [G80]).add("b", [G80])
    holders = [held(fleet, "r0", 10, "a/0"), held(fleet, "r1", 20, "b/0")]
    inventory = fleet.inventory()
    inventory.upsert_load(InstanceLoad(o.instance, "d", tuple(o.workers), (o.claims[0].device,)) for o in holders)
    some = [movable(holders[0], 10, strategy=strategy), movable(holders[1], 70, strategy=strategy)]
    plan = consolidate(inventory, [ask(80)], some)
    assert [one.instance for one in plan.relocations] == moved


GANG = ask(0, 4, exclusive=True, workers=4)
MANY = 300  # hosts with a GPU each: more than a gang's search takes into account


def one_gpu_hosts(names: Sequence[str]) -> Fleet:
    fleet = Fleet()
    for name in names:
        fleet.add(name, [G80])
    return fleet


def test_for_a_gang_an_instance_on_all_its_hosts_ends_rather_than_one_on_each() -> None:
    fleet = one_gpu_hosts([f"w{n:03}" for n in range(MANY)])
    wide = held(fleet, "wide", 80, *(f"w{n}/0" for n in range(MANY - 4, MANY)))
    singles = [held(fleet, f"s{n}", 80, f"w{n:03}/0") for n in range(MANY - 4)]
    assert names(fleet, GANG, [*singles, wide]) == ["wide"]


def test_for_a_gang_pairs_of_hosts_that_an_instance_shares_end_together() -> None:
    """The hosts of each pair are far apart by name."""
    fleet = one_gpu_hosts([f"w{n:03}" for n in range(MANY)])
    half = MANY // 2
    pairs = [held(fleet, f"p{n:03}", 80, f"w{n:03}/0", f"w{n + half:03}/0", lost_s=float(n)) for n in range(half)]
    assert names(fleet, GANG, pairs) == ["p000", "p001"]


@pytest.mark.parametrize("free", [0, 1, 3])
def test_for_a_gang_free_hosts_are_used_first(free: int) -> None:
    """The free hosts are the last by name."""
    fleet = one_gpu_hosts([f"w{n:03}" for n in range(MANY)])
    held_ones = [held(fleet, f"s{n:03}", 80, f"w{n:03}/0", lost_s=float(n)) for n in range(MANY - free)]
    assert names(fleet, GANG, held_ones) == [f"s{n:03}" for n in range(4 - free)]


def test_only_those_whose_end_is_needed_end() -> None:
    """Whatever set a search comes with: what fits without the end of an instance spares it."""
    fleet = Fleet().add("a", [G80]).add("b", [G80])
    some = [held(fleet, "one", 50, "a/0"), held(fleet, "two", 50, "b/0")]
    for order in (some, some[::-1]):
        placed, needed = spared(fleet.inventory(), ask(70), order)
        assert placed is not None
        assert len(needed) == 1
        assert placed.workers == tuple(needed[0].workers)


@pytest.mark.parametrize("kind", ["memory", "cpu"])
def test_a_victim_must_free_what_the_host_lacks_to_the_last_unit(kind: str) -> None:
    """Both hold a GPU each; one of them holds the last MiB, or the last thousandth of a core, as well."""
    fleet = Fleet().add("a", [G80] * 2, host_memory=64 * GIB, cpus=8)
    small = {"memory": (1, 0), "cpu": (0, 1)}[kind]
    fleet.set("host-a", claimed_mib=small[0], claimed_cpu_milli=small[1])
    holders = [held(fleet, "x", 80, "a/0"), held(fleet, "y", 80, "a/1")]
    claims = (holders[1].claims[0], PlannedClaim("host-a", *small, False, 0))
    holders[1] = replace(holders[1], claims=claims)
    needs = {"memory": {"host_memory_mib": 64 * GIB}, "cpu": {"cpu_milli": 8_000}}[kind]
    assert names(fleet, replace(ask(80), **needs), holders) == ["y"]


@pytest.mark.parametrize("part", ["foreign_mib", "reserved_mib"])
def test_memory_that_is_not_to_be_had_counts_against_the_victims(part: str) -> None:
    fleet = Fleet().add("a", [G80])
    holders = [held(fleet, name, 30, "a/0") for name in ("x", "y")]
    fleet.set("a/0", **{part: 15 * GIB})
    assert names(fleet, ask(35), holders) == ["x"]
    assert names(fleet, ask(36), holders) == ["x", "y"]
    assert names(fleet, ask(65), holders) == ["x", "y"]
    assert find_victims(fleet.inventory(), ask(66), holders) is None


@pytest.mark.parametrize("first", [{"foreign_mib": GIB}, {"memory_mib": 40 * GIB}, {"healthy": False}])
def test_whole_gpus_that_no_victim_frees_are_left_out(first: dict[str, object]) -> None:
    fleet = Fleet().add("a", [G80] * 3).set("a/0", **first)
    holders = [held(fleet, "x", 80, "a/1"), held(fleet, "y", 40, "a/2"), held(fleet, "z", 40, "a/2")]
    assert names(fleet, ask(60, 1, exclusive=True), holders) == ["x"]
    assert names(fleet, ask(60, 2, exclusive=True), holders) == ["x", "y", "z"]
    assert find_victims(fleet.inventory(), ask(60, 3, exclusive=True), holders) is None


@pytest.mark.parametrize(
    "costly", [{"priority": 11}, {"movable": False}, {"task": True}, {"lost_s": 60.0}, {"queued_at": -1.0}]
)
def test_of_two_of_which_either_suffices_the_costlier_is_spared(costly: dict[str, float]) -> None:
    for first in ("a", "b"):
        fleet = Fleet().add("a", [G80]).add("b", [G80])
        some = [replace(held(fleet, name, 50, f"{name}/0"), **(costly if name == first else {})) for name in "ab"]
        _, needed = spared(fleet.inventory(), ask(70), some)
        assert [one.instance for one in needed] == ["b" if first == "a" else "a"]
