"""Consolidation: which instances relocate so that others fit, and that nothing is ever claimed twice on the way."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.domain.admission import Destination, Holder, InstanceLoad, PendingInstance
from controller.domain.placement import Ask, Layout, PlannedClaim
from controller.scheduling.admission import consolidate as consolidating
from controller.scheduling.admission.consolidate import (
    Consolidation,
    Movable,
    consolidate,
    find_replacement,
    replaceable,
)
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.cached_search import find
from controller.scheduling.search.place import place
from support.builders.fleet import GIB, Fleet, gpus_of


def ask(name: str, gpus: int, gib: int, *, workers: int = 1, exclusive: bool = False, **more: object) -> Ask:
    layout = Layout(gpus=gpus, memory_mib=gib * GIB, exclusive=exclusive, workers=workers)
    return Ask(instance=name, deployment_uid=f"d-{name}", layouts=(layout,), **more)  # type: ignore[arg-type] # fields


def running(fleet: Fleet, name: str, gib: int, *gpus: str, **more: object) -> Movable:
    """A running instance; its replacement asks for as much anywhere."""
    for gpu in gpus:
        fleet.claim(gpu, gib * GIB)
    claims = tuple(PlannedClaim(gpu, gib * GIB, 0, False, n) for n, gpu in enumerate(gpus))
    workers = tuple(dict.fromkeys(f"id-{gpu.partition('/')[0]}" for gpu in gpus))
    return Movable(name, workers, claims, ask(name, len(gpus), gib, **more))


def planned(fleet: Fleet, demands: Sequence[Ask], movable: Sequence[Movable], **more: Any) -> Consolidation:
    inventory = fleet.inventory()
    before = _picture(inventory)
    plan = consolidate(inventory, demands, movable, **more)
    assert _picture(inventory) == before
    return plan


def _picture(inventory: Inventory) -> list[list[int]]:
    gpus, workers = inventory.gpus, inventory.workers
    return [gpus.claimed.tolist(), gpus.claims.tolist(), gpus.free.tolist(), workers.memory_claimed.tolist()]


def relocated(plan: Consolidation) -> dict[str, list[str]]:
    return {one.instance: gpus_of(one.to) for one in plan.relocations}


def test_nothing_is_relocated_for_what_fits() -> None:
    fleet = Fleet().add("a", [80 * GIB] * 2)
    small = running(fleet, "small", 10, "a/0")
    plan = planned(fleet, [ask("big", 1, 80)], [small])
    assert (relocated(plan), plan.unplaced, gpus_of(plan.placed[0])) == ({}, [], ["a/1"])


def test_nothing_is_relocated_where_a_leaving_holder_frees_enough() -> None:
    fleet = Fleet().add("a", [80 * GIB]).add("b", [80 * GIB])
    small, ending = running(fleet, "small", 10, "a/0"), running(fleet, "ending", 20, "b/0")
    leaving = [Holder(ending.instance, 0, 0.0, frozenset(ending.workers), ending.claims)]
    plan = planned(fleet, [ask("big", 1, 80), ask("more", 1, 80)], [small], leaving=leaving)
    assert (relocated(plan), [gpus_of(one) for one in plan.placed], plan.unplaced) == ({}, [["b/0"]], ["more"])


def test_all_keep_clear_of_a_place_that_is_promised() -> None:
    """Its first GPU is free already; neither an older demand nor a replacement may have it."""
    fleet = Fleet().add("a", [80 * GIB] * 2).add("b", [80 * GIB] * 2)
    ending, small = running(fleet, "ending", 80, "a/1"), running(fleet, "small", 10, "b/0")
    leaving = [Holder(ending.instance, 0, 0.0, frozenset(ending.workers), ending.claims)]
    preemptor = ask("preemptor", 2, 80)
    place = PendingInstance(preemptor).bound_for(Destination(("a",), ("a/0", "a/1")))
    demands = [ask("older", 1, 80), ask("big", 2, 80), preemptor]
    plan = planned(fleet, demands, [small], leaving=leaving, promised={"preemptor": place})
    assert {one.instance: gpus_of(one) for one in plan.placed} == {"older": ["b/1"], "preemptor": ["a/0", "a/1"]}
    assert (relocated(plan), plan.unplaced) == ({}, ["big"])


def test_a_promised_place_that_is_gone_is_kept_for_none() -> None:
    fleet = Fleet().add("a", [80 * GIB])
    preemptor = ask("preemptor", 1, 80)
    place = PendingInstance(preemptor).bound_for(Destination(("gone",), ("gone/0",)))
    plan = planned(fleet, [ask("older", 1, 80), preemptor], [], promised={"preemptor": place})
    assert ([gpus_of(one) for one in plan.placed], plan.unplaced) == ([["a/0"]], ["preemptor"])


def test_equal_demands_that_do_not_fit_are_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, asked = Fleet().add("a", [80 * GIB]), []
    small = running(fleet, "small", 10, "a/0")
    monkeypatch.setattr(consolidating, "sites", lambda *given: asked.append(given) or [])
    plan = planned(fleet, [ask(f"big-{n}", 1, 80) for n in range(1000)], [small])
    assert (len(plan.unplaced), len(asked)) == (1000, 1)


def test_the_fewest_are_relocated_and_of_as_many_the_smallest() -> None:
    fleet = Fleet().add("a", [80 * GIB]).add("b", [80 * GIB]).add("c", [80 * GIB])
    movable = [running(fleet, "two-1", 10, "a/0"), running(fleet, "two-2", 10, "a/0")]
    movable += [running(fleet, "large", 40, "b/0"), running(fleet, "small", 30, "c/0")]
    plan = planned(fleet, [ask("big", 1, 80)], movable)
    assert relocated(plan) == {"small": ["b/0"]}
    assert gpus_of(plan.placed[0]) == ["c/0"]


def test_one_large_one_is_relocated_rather_than_two_small_ones() -> None:
    fleet = Fleet().add("a", [24 * GIB] * 2).add("b", [20 * GIB])
    movable = [running(fleet, "large", 20, "a/0"), *(running(fleet, f"small-{n}", 10, "a/1") for n in "12")]
    assert relocated(planned(fleet, [ask("big", 1, 24)], movable)) == {"large": ["b/0"]}


def test_what_is_not_movable_stays() -> None:
    fleet = Fleet().add("a", [80 * GIB]).add("b", [80 * GIB])
    small, large = running(fleet, "small", 10, "a/0"), running(fleet, "large", 40, "b/0")
    assert relocated(planned(fleet, [ask("big", 1, 80)], [small, large])) == {"small": ["b/0"]}
    assert relocated(planned(fleet, [ask("big", 1, 80)], [large])) == {"large": ["a/0"]}
    plan = planned(fleet, [ask("big", 1, 80)], [])
    assert (plan.relocations, plan.unplaced) == ([], ["big"])


def test_what_fits_nowhere_else_stays() -> None:
    fleet = Fleet().add("a", [80 * GIB], labels={"zone": "a"}).add("b", [80 * GIB])
    bound = running(fleet, "bound", 10, "a/0", labels={"zone": "a"})
    other = running(fleet, "other", 40, "b/0")
    assert relocated(planned(fleet, [ask("big", 1, 80)], [bound, other])) == {"other": ["a/0"]}


def test_capacity_for_a_gang_and_for_whole_gpus() -> None:
    fleet = Fleet().add("a", [80 * GIB] * 2).add("b", [80 * GIB] * 2).add("c", [80 * GIB] * 2)
    movable = [running(fleet, f"m{n}", 10, f"{n}/0") for n in "abc"]
    plan = planned(fleet, [ask("gang", 4, 80, workers=2, exclusive=True)], movable)
    assert len(plan.relocations) == 2
    assert len(plan.placed) == 1
    assert len(plan.placed[0].workers) == 2


def test_several_demands_in_order_and_at_most_max_relocations() -> None:
    fleet = Fleet().add("a", [80 * GIB]).add("b", [80 * GIB]).add("c", [80 * GIB])
    movable = [running(fleet, f"m{n}", 10, f"{n}/0") for n in "abc"]
    plan = planned(fleet, [ask("one", 1, 80), ask("two", 1, 80), ask("three", 1, 80)], movable)
    assert [p.instance for p in plan.placed] == ["one", "two"]
    assert (len(plan.relocations), plan.unplaced) == (2, ["three"])
    assert planned(fleet, [ask("one", 1, 80), ask("two", 1, 80)], movable, max_relocations=1).unplaced == ["two"]


HELD = st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(1, 60), st.booleans())


@settings(max_examples=60, deadline=None)
@given(held=st.lists(HELD, max_size=8), wanted=st.lists(st.tuples(st.integers(1, 2), st.integers(1, 80)), max_size=3))
def test_replacements_fit_beside_all_that_runs_and_every_relocation_is_needed(
    held: list[tuple[int, int, int, bool]], wanted: list[tuple[int, int]]
) -> None:
    fleet, movable = Fleet(), []
    for number in range(4):
        fleet.add(f"w{number}", [80 * GIB] * 2)
    for number, (worker, gpu, gib, may_move) in enumerate(held):
        uuid = f"w{worker}/{gpu}"
        if fleet.devices[uuid].claimed_mib + gib * GIB > 80 * GIB:
            continue
        one = running(fleet, f"m{number}", gib, uuid)
        movable += [one] if may_move else []
    demands = [ask(f"d{n}", gpus, gib) for n, (gpus, gib) in enumerate(wanted)]
    plan = planned(fleet, demands, movable)
    taken = Counter({uuid: device.claimed_mib for uuid, device in fleet.devices.items()})
    for one in plan.relocations:
        taken.update({claim.device: claim.memory_mib for claim in one.to.claims})
    assert all(taken[uuid] <= device.memory_mib for uuid, device in fleet.devices.items()), "while replacements start"
    relocating = {one.instance for one in plan.relocations}
    for one in movable:
        if one.instance in relocating:
            taken.subtract({claim.device: claim.memory_mib for claim in one.claims})
    for placed in plan.placed:
        taken.update({claim.device: claim.memory_mib for claim in placed.claims})
    assert all(taken[uuid] <= device.memory_mib for uuid, device in fleet.devices.items()), "once all is done"
    assert {p.instance for p in plan.placed} | set(plan.unplaced) == {d.instance for d in demands}
    if plan.relocations:
        inventory = fleet.inventory()
        inventory.begin_pass()
        together = [find(inventory, d) for d in demands[:1]]
        assert len(demands) > 1 or together == [None], "nothing is relocated for what fits anyway"


def test_a_plan_takes_back_nothing_that_was_placed_before() -> None:
    fleet = Fleet().add("a", [80 * GIB])
    inventory = fleet.inventory()
    place(inventory, [ask("placed", 1, 60)])
    before = _picture(inventory)
    assert consolidate(inventory, [ask("big", 1, 60)], []).unplaced == ["big"]
    assert _picture(inventory) == before


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (ask("i", 1, 80), True),
        (ask("i", 1, 81), False),
        (ask("i", 2, 10), True),
        (ask("i", 2, 11), False),  # a shared GPU has 10 GiB left
        (ask("i", 3, 1), False),
        (ask("i", 4, 80, workers=2), False),
        (ask("i", 2, 80, workers=2), True),  # a search compares the hosts
        (ask("i", 1, 0, exclusive=True), True),
        (ask("i", 2, 0, exclusive=True), False),
        (ask("i", 0, 0), True),
        (ask("i", 0, 0, host_memory_mib=64 * GIB), True),
        (ask("i", 0, 0, host_memory_mib=65 * GIB), False),
        (ask("i", 0, 0, cpu_milli=8_000), True),
        (ask("i", 0, 0, cpu_milli=8_001), False),
        (replace(ask("i", 3, 1), gpus=("a:0", "a:1", "b:0")), True),  # they may be distributed unevenly
        (ask("i", 3, 1, otherwise=ask("i", 1, 1)), True),
    ],
)
def test_an_ask_is_replaceable_where_any_host_has_enough_free(wanted: Ask, expected: bool) -> None:
    fleet = Fleet().add("a", [80 * GIB] * 2, host_memory=64 * GIB, cpus=8).claim("a/0", 70 * GIB)
    fleet.add("b", [80 * GIB], host_memory=32 * GIB, cpus=4).claim("b/0")
    assert replaceable(fleet.inventory(), [wanted]) == [expected]


@pytest.mark.parametrize(("strategy", "other", "expected"), [("spread", "a/1", []), ("spread", "a/0", ["a/1"])])
def test_a_spread_replacement_on_the_same_worker_shares_no_gpu_with_another_replica(
    strategy: str, other: str, expected: list[str]
) -> None:
    fleet = Fleet().add("a", [80 * GIB] * 2)
    old = running(fleet, "r0", 60, "a/0")
    running(fleet, "r1", 10, other)
    inventory = fleet.inventory()
    inventory.upsert_load([InstanceLoad("r0", "d", ("id-a",), ("a/0",)), InstanceLoad("r1", "d", ("id-a",), (other,))])
    wanted = replace(ask("r0+", 1, 60), deployment_uid="d", strategy=strategy)  # type: ignore[arg-type] # a table
    placed = find_replacement(inventory, wanted, Holder("r0", 0, 0.0, frozenset({"id-a"}), old.claims))
    assert ([] if placed is None else gpus_of(placed)) == expected


def test_an_instance_is_relocated_once_in_a_plan() -> None:
    """What its relocation leaves over could serve a second demand only if it ended before the first is placed."""
    fleet = Fleet().add("a", [80 * GIB]).add("b", [10 * GIB]).add("c", [10 * GIB])
    small = running(fleet, "small", 10, "a/0")
    plan = planned(fleet, [ask("big", 1, 75), replace(ask("more", 1, 5), workers=("a",))], [small])
    assert (relocated(plan), plan.unplaced) == ({"small": ["b/0"]}, ["more"])


@pytest.mark.parametrize(("others", "moved"), [(1, {}), (2, {"s0": ["b0/0"], "s1": ["b1/0"]})])
def test_replacements_do_not_share_the_capacity_that_one_of_them_takes(
    others: int, moved: dict[str, list[str]]
) -> None:
    fleet = Fleet().add("a", [80 * GIB])
    for n in range(others):
        fleet.add(f"b{n}", [10 * GIB])
    movable = [running(fleet, f"s{n}", 10, "a/0") for n in range(2)]
    plan = planned(fleet, [ask("big", 1, 80)], movable)
    assert (relocated(plan), plan.unplaced) == (moved, [] if moved else ["big"])


def test_the_largest_replacement_is_placed_first() -> None:
    """The small one fits on both hosts, and takes the first of them where it has the choice."""
    fleet = Fleet().add("a", [80 * GIB]).add("b", [45 * GIB]).add("c", [15 * GIB])
    movable = [running(fleet, name, gib, "a/0", strategy="spread") for name, gib in (("x", 10), ("y", 40))]
    plan = planned(fleet, [ask("big", 1, 80)], movable)
    assert (relocated(plan), plan.unplaced) == ({"x": ["c/0"], "y": ["b/0"]}, [])
