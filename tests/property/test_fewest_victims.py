"""Victims against all other choices: in small fleets of gangs, no set of instances is cheaper than the chosen one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from random import Random

import pytest

from controller.domain.admission import Holder
from controller.domain.placement import Ask, Layout, PlannedClaim
from controller.scheduling.admission.consolidate import Movable, consolidate
from controller.scheduling.admission.victims import find_victims, preemption_cost
from controller.scheduling.inventory.capacity import Inventory, without
from controller.scheduling.search.cached_search import find
from support.admission_rounds import start
from support.builders.fleet import GIB, Fleet
from support.profiles import PROFILE

SCENES = {"short": 160, "full": 400}.get(PROFILE, 5_000)
BLOCKS = 4 if PROFILE == "short" else 8
MOST_HOLDERS = 11  # 2,047 sets
G80, G78, G40 = 80 * GIB, 78 * GIB, 40 * GIB
GANGS = (
    *(Layout(gpus * workers, 0, True, workers) for gpus in (1, 2, 4) for workers in (2, 3, 4)),
    *(Layout(workers, 30 * GIB, False, workers) for workers in (2, 3)),
)
SINGLE = (*(Layout(gpus, 0, True) for gpus in (1, 2, 4)), *(Layout(1, gib * GIB, False) for gib in (10, 25, 50)))


def scene(seed: int) -> tuple[Inventory, list[Holder], Ask]:
    """Gangs and single instances on a few hosts of up to two kinds, and an ask that does not fit in most of them."""
    some = Random(seed)  # noqa: S311 - scenes, no secret
    fleet = Fleet()
    kinds = some.choice((("H",), ("H",), ("H", "A"), ("H", "A")))
    by_gpu = some.random() < 0.3
    for number in range(some.randint(2, some.choice((8, 14)))):
        name = f"w{number:02}"
        size, count = some.choice((G80, G80, G78, G40)) if some.random() < 0.3 else G80, some.choice((1, 2, 2, 4))
        fleet.add(name, [size] * count, host_memory=some.choice((8, 64)) * GIB)
        kind = some.choice(kinds)
        for index in range(count):
            fleet.set(f"{name}/{index}", model=some.choice(kinds) if by_gpu else kind)
    running = []
    for number in range(some.randint(2, 14)):
        layout = some.choice(GANGS if some.random() < 0.7 else SINGLE)
        memory = some.choice((0, 0, 4 * GIB))
        running.append(
            (Ask(f"r{number:02}", f"d{number}", (layout,), host_memory_mib=memory), some.choice((1, 1, 1, 2)))
        )
    holders = [
        replace(
            one,
            task=some.random() < 0.2,
            movable=some.random() < 0.8,
            lost_s=float(some.randint(0, 3)),
        )
        for one in start(fleet.inventory(), running, ()).staying.values()
    ][:MOST_HOLDERS]
    inventory = fleet.inventory()
    inventory.exclude(())  # the arrays are there
    for one in holders:
        inventory.restore(one.claims)
    layouts = tuple(some.sample(GANGS if some.random() < 0.8 else SINGLE, some.choice((1, 1, 2))))
    return inventory, holders, Ask("p", "dp", layouts, host_memory_mib=some.choice((0, 0, 6 * GIB)))


def gangs(seed: int) -> tuple[Inventory, list[Holder], Ask]:
    """More hosts, held by few gangs that take them whole, and by some single instances."""
    some = Random(seed)  # noqa: S311 - scenes, no secret
    fleet, hosts = Fleet(), [f"w{number:02}" for number in range(some.randint(6, 24))]
    kinds = some.choice((("H",), ("H", "A")))
    for name in hosts:
        fleet.add(name, [G80] * 2)
        kind = some.choice(kinds)
        for index in range(2):
            fleet.set(f"{name}/{index}", model=kind)
    order, holders = some.sample(hosts, len(hosts)), []
    while order and len(holders) < MOST_HOLDERS:
        mine = [order.pop() for _ in range(min(len(order), some.randint(1, 4)))]
        apart = [[f"{mine[0]}/0"], [f"{mine[0]}/1"]] if len(mine) == 1 and some.random() < 0.5 else []
        for gpus in apart or [[f"{name}/{index}" for name in mine for index in range(2)]]:
            holders.append(holder(some, f"r{len(holders):02}", gpus, some.choice((1, 1, 2))))
    inventory = fleet.inventory()
    inventory.exclude(())  # the arrays are there
    for one in holders:
        inventory.restore(one.claims)
    for name in order:  # held by what stays
        inventory.restore(holder(some, "stays", [f"{name}/0", f"{name}/1"], 9).claims)
    size = some.randint(2, 5)
    return inventory, holders, Ask("p", "dp", (Layout(size * some.randint(1, 2), 0, True, size),))


def holder(some: Random, name: str, gpus: Sequence[str], priority: int) -> Holder:
    hosts = sorted({gpu.partition("/")[0] for gpu in gpus})
    claims = [PlannedClaim(gpu, G80, 0, True, number) for number, gpu in enumerate(gpus)]
    claims += [PlannedClaim(f"host-{host}", 0, 0, False, 0) for host in hosts]
    workers = frozenset(f"id-{host}" for host in hosts)
    return Holder(name, priority, some.random(), workers, tuple(claims), task=some.random() < 0.2)


def cheaper(holders: Sequence[Holder], than: tuple[object, ...] | None) -> Iterator[tuple[Holder, ...]]:
    """All sets of holders that cost less, the cheapest first."""
    sets = [
        (preemption_cost(some), some) for size in range(1, len(holders) + 1) for some in combinations(holders, size)
    ]
    for cost, some in sorted(sets, key=lambda pair: pair[0]):
        if than is not None and cost >= than:
            return
        yield some


@pytest.mark.parametrize("of", [scene, gangs])
@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_set_of_instances_is_cheaper(block: int, of: Callable[[int], tuple[Inventory, list[Holder], Ask]]) -> None:
    victims = 0
    for seed in range(block * SCENES // BLOCKS, (block + 1) * SCENES // BLOCKS):
        inventory, holders, ask = of(seed)
        if find(inventory, ask) is not None:
            continue
        found = find_victims(inventory, ask, holders)
        chosen = None if found is None else preemption_cost(found.victims)
        victims += chosen is not None
        for some in cheaper(holders, chosen):
            with without(inventory, some):
                better = find(inventory, ask)
            assert better is None, f"seed {seed}: {[o.instance for o in some]} instead of {chosen}"
    assert victims > SCENES // BLOCKS // 5, "too few scenes with victims"


def movable(one: Holder) -> Movable:
    """A server that may go wherever as many GPUs of some host have 10 GiB each."""
    hosts = len(one.workers)
    ask = Ask(one.instance, f"d-{one.instance}", (Layout(one.gpus, 10 * GIB, False, hosts),))
    return Movable(one.instance, tuple(sorted(one.workers)), one.claims, ask, one.priority)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_fewer_relocations_would_do(block: int) -> None:
    """Hosts with some memory left: each replacement fits beside what runs."""
    moved = 0
    for seed in range(block * SCENES // BLOCKS, (block + 1) * SCENES // BLOCKS):
        some = Random(seed)  # noqa: S311 - scenes, no secret
        fleet, hosts, holders = Fleet(), [f"w{number:02}" for number in range(some.randint(3, 12))], []
        for name in hosts:
            fleet.add(name, [G80] * 2)
        order = some.sample(hosts, len(hosts))
        while order and len(holders) < MOST_HOLDERS:
            mine = [order.pop() for _ in range(min(len(order), some.randint(1, 4)))]
            gpus = [f"{name}/{index}" for name in mine for index in range(2)]
            whole = holder(some, f"r{len(holders):02}", gpus, 1)
            claims = tuple(
                replace(c, exclusive=False, memory_mib=10 * GIB if "/" in c.device else 0) for c in whole.claims
            )
            holders.append(replace(whole, claims=claims, task=False))
        inventory = fleet.inventory()
        inventory.exclude(())
        for one in holders:
            inventory.restore(one.claims)
        size = some.randint(1, 4)
        ask = Ask("p", "dp", (Layout(2 * size, 0, True, size),))
        able = [movable(one) for one in holders]
        plan = consolidate(inventory, [ask], able)
        moved += len(plan.relocations)
        fewer = len(plan.relocations) if plan.placed else len(able) + 1
        for number in range(min(fewer, 5)):
            for subset in combinations(able, number):
                assert not consolidate(inventory, [ask], subset).placed, f"seed {seed}: {number} would do"
    assert moved > SCENES // BLOCKS // 5


def test_one_gang_ends_for_a_gang_of_as_many_hosts() -> None:
    """Ten gangs of four hosts, each on hosts far apart."""
    inventory, holders = whole_hosts([[f"w{gang + 10 * rank:02}" for rank in range(4)] for gang in range(10)])
    found = find_victims(inventory, Ask("p", "dp", (Layout(32, 0, True, 4),)), holders)
    assert found is not None
    assert len(found.victims) == 1


@pytest.mark.parametrize("hosts", [64, 65, 300])
def test_the_best_host_is_found_though_it_is_the_last_of_many(hosts: int) -> None:
    """All hosts but the last have nine in the way of four GPUs, one of which holds a little of each."""
    fleet, holders = Fleet(), []
    for number in range(hosts):
        name = f"w{number:03}"
        fleet.add(name, [G80] * 4)
        gpus = [f"{name}/{index}" for index in range(4)]
        if number == hosts - 1:
            parts = [(gpus[:2], 70), (gpus[2:], 70)]
        else:
            parts = [(gpus, 1), *(([gpu], 37) for gpu in gpus for _ in range(2))]
        for some, gib in parts:
            claims = [PlannedClaim(gpu, gib * GIB, 0, False, 0) for gpu in some]
            claims.append(PlannedClaim(f"host-{name}", 0, 0, False, 0))
            holders.append(Holder(f"r{number}-{len(holders)}", 1, 0.0, frozenset([f"id-{name}"]), tuple(claims)))
            for gpu in some:
                fleet.claim(gpu, gib * GIB)
    ask = Ask("p", "dp", (Layout(4, 60 * GIB, False),))
    found = find_victims(fleet.inventory(), ask, holders)
    assert found is not None
    assert len(found.victims) == 2
    able = [
        Movable(one.instance, tuple(one.workers), one.claims, Ask(one.instance, "d", (Layout(1, GIB, False),)))
        for one in holders
    ]
    fleet.add("empty", [G80 // 2] * 4)
    assert len(consolidate(fleet.inventory(), [ask], able).relocations) == 2


def test_of_two_kinds_the_hosts_of_one_gang_are_freed() -> None:
    """The gangs of one kind have a host of the other in between."""
    hosts = [["a0", "b1"], ["a1", "b0"], ["b2", "b3"]]
    inventory, holders = whole_hosts(hosts, {name: G40 for some in hosts for name in some if name[0] == "b"})
    found = find_victims(inventory, Ask("p", "dp", (Layout(16, 0, True, 2),)), holders)
    assert found is not None
    assert [one.instance for one in found.victims] == ["g2"]


def whole_hosts(
    gangs: Sequence[Sequence[str]], sizes: Mapping[str, int] | None = None
) -> tuple[Inventory, list[Holder]]:
    """Gangs that hold all eight GPUs of each of their hosts. `sizes`: in MiB, where they are not 80 GiB."""
    fleet, holders = Fleet(), []
    for name in sorted(name for hosts in gangs for name in hosts):
        fleet.add(name, [(sizes or {}).get(name, G80)] * 8)
        for index in range(8):
            fleet.set(f"{name}/{index}", model=str((sizes or {}).get(name, "H"))).claim(f"{name}/{index}")
    for number, hosts in enumerate(gangs):
        gpus = [f"{name}/{index}" for name in hosts for index in range(8)]
        one = holder(Random(0), f"g{number}", gpus, 1)  # noqa: S311 - no secret
        claims = [
            replace(claim, memory_mib=fleet.devices[claim.device].memory_mib) if "/" in claim.device else claim
            for claim in one.claims
        ]
        holders.append(replace(one, task=False, claims=tuple(claims)))
    return fleet.inventory(), holders
