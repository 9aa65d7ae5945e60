"""Replicas of one deployment share a GPU only where no other place fits."""

import random
from collections import OrderedDict
from typing import get_args

import pytest

from controller.domain.admission import Demand, Holder, InstanceLoad
from controller.domain.placement import Ask, Layout, Placed, Strategy
from controller.scheduling.admission.consolidate import find_replacement
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.cached_search import find
from controller.scheduling.search.place import place
from schemas.manifest.deployment import DeploymentSpec
from support.builders.asks import ask
from support.builders.fleet import GIB, Fleet, gpus_of

STRATEGIES: list[Strategy] = ["auto", "spread", "least_fragmentation"]
G80 = 80 * GIB


def replicas(number: int, strategy: Strategy, *, uid: str = "d", gib: int = 10, gpus: int = 1) -> list[Ask]:
    layout = Layout(gpus, gib * GIB, False, tp=gpus)
    return [Ask(f"{uid}-{n}", uid, (layout,), strategy=strategy) for n in range(number)]


def places(inventory: Inventory, asks: list[Ask]) -> list[str]:
    return ["+".join(gpus_of(one)) if isinstance(one, Placed) else "-" for one in place(inventory, asks)]


def known_demand(inventory: Inventory) -> Inventory:
    """For least_fragmentation, which else equals pack."""
    inventory.upsert_load([InstanceLoad("x", "x", (), (), Demand(1, 30 * GIB, False, 0, 0))])
    inventory.begin_pass()
    return inventory


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("gpus", [1, 2])
def test_replicas_take_a_gpu_each_while_there_is_one(strategy: Strategy, gpus: int) -> None:
    inventory = known_demand(Fleet().add("a", [G80] * 4).add("b", [G80] * 4).inventory())
    found = places(inventory, replicas(8 // gpus, strategy, gpus=gpus))
    taken = [gpu for one in found for gpu in one.split("+")]
    assert len(set(taken)) == 8


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_they_keep_apart_on_workers_of_different_sizes(strategy: Strategy) -> None:
    inventory = known_demand(Fleet().add("a", [G80] * 4).add("b", [G80] * 2).add("c", [G80]).inventory())
    assert len(set(places(inventory, replicas(7, strategy)))) == 7


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_they_share_where_nothing_else_fits(strategy: Strategy) -> None:
    inventory = known_demand(Fleet().add("a", [G80] * 2).inventory())
    found = places(inventory, replicas(17, strategy))
    assert sorted(set(found[:2])) == ["a/0", "a/1"]
    assert found[2:].count("-") == 1, "eight on each GPU"


def test_a_written_pack_packs_as_ever_and_what_is_not_written_does_not() -> None:
    inventory = Fleet().add("a", [G80] * 4).inventory()
    assert places(inventory, replicas(3, "pack")) == ["a/0"] * 3
    assert DeploymentSpec.model_validate({"engine": "simulated"}).placement.strategy == "auto"
    fleet = Fleet().add("a", [G80] * 4)
    given = [ask("q06b"), ask("q06b", placement={"strategy": "pack"})]
    assert [one.strategy for one in given] == ["auto", "pack"]
    assert len(set(places(fleet.inventory(), [one.for_instance(str(n)) for n, one in enumerate([given[0]] * 3)]))) == 3


def test_others_are_packed_as_ever() -> None:
    """Each deployment of its own: a GPU that is shared already comes first."""
    inventory = Fleet().add("a", [G80] * 4).inventory()
    asks = [one for n in range(4) for one in replicas(1, "auto", uid=f"d{n}")]
    assert places(inventory, asks) == ["a/0"] * 4


def test_a_replica_takes_the_gpu_of_another_deployment_rather_than_its_siblings() -> None:
    inventory = Fleet().add("a", [G80] * 4).inventory()
    assert places(inventory, [*replicas(1, "auto"), *replicas(2, "auto", uid="e"), *replicas(2, "auto", uid="f")]) == [
        "a/0", "a/0", "a/1", "a/0", "a/1",
    ]  # fmt: skip


@pytest.mark.parametrize("strategy", ["auto", "least_fragmentation"])
@pytest.mark.parametrize("sibling", ["a", "b"])
def test_of_equal_places_one_on_a_host_without_a_sibling_is_taken(strategy: Strategy, sibling: str) -> None:
    other = "b" if sibling == "a" else "a"
    inventory = known_demand(Fleet().add("a", [G80] * 2).add("b", [G80] * 2).inventory())
    for host, uid in ((sibling, "d"), (other, "x")):
        one = Ask(f"{uid}-0", uid, (Layout(1, 20 * GIB, True),), workers=(host,), strategy="auto")
        assert place_on(inventory, one) == f"{host}/0"
    assert place_on(inventory, replicas(2, strategy)[1]) == f"{other}/1"


def place_on(inventory: Inventory, one: Ask) -> str:
    placed = place(inventory, [one])[0]
    assert isinstance(placed, Placed)
    return gpus_of(placed)[0]


def test_spread_leaves_a_worker_that_it_prefers_for_an_empty_gpu_alone() -> None:
    inventory = Fleet().add("one", [G80]).add("two", [G80] * 2).inventory()
    inventory.upsert_load([
        InstanceLoad("d-0", "d", ("id-one",), ("one/0",)), InstanceLoad("d-1", "d", ("id-two",), ("two/0",)),
        InstanceLoad("x", "x", ("id-two",), ("two/0",)),
    ])  # fmt: skip
    assert place_on(inventory, replicas(3, "spread")[2]) == "two/1"


def test_a_worker_on_which_it_failed_comes_after_a_shared_gpu() -> None:
    inventory = Fleet().add("a", [G80]).add("b", [G80]).inventory()
    first, second = replicas(2, "auto")
    assert place_on(inventory, first) == "a/0"
    assert place_on(inventory, second.for_instance("d-1", frozenset({"id-b"}))) == "a/0"


def test_no_relocation_brings_replicas_together() -> None:
    inventory = Fleet().add("a", [G80] * 2).inventory()
    placed = [one for one in place(inventory, replicas(2, "auto")) if isinstance(one, Placed)]
    old = Holder("d-1", 0, 0.0, frozenset({"id-a"}), placed[1].claims)
    again = replicas(3, "auto")[2]
    assert find_replacement(inventory, again, old) is None
    assert find_replacement(inventory, Ask("d-2", "d", again.layouts, strategy="pack"), old) is not None


@pytest.mark.parametrize("strategy", get_args(Strategy))
@pytest.mark.parametrize("hosts", [3, 80], ids=["few", "many, of which one of each state is ranked"])
def test_a_kept_search_finds_what_a_new_one_finds(strategy: Strategy, hosts: int) -> None:
    """Whatever was placed and ended before; and none shares with a sibling while another GPU would do."""
    for seed in range(6):
        draw, fleet = random.Random(seed), Fleet()  # noqa: S311 - test data
        for n in range(hosts):
            fleet.add(f"w{n:02}", [G80] * 2)
        inventory = known_demand(fleet.inventory())
        present: list[Placed] = []
        for n in range(40):
            if present and draw.random() < 0.4:
                inventory.unreserve(present.pop(draw.randrange(len(present))))
            need = draw.choice([10, 30]) * GIB
            one = Ask(f"{n}", draw.choice("de"), (Layout(1, need, False),), strategy=strategy)
            found = find(inventory, one)
            assert found == _found_anew(inventory, one)
            if found is None:
                continue
            mine = inventory.deployment_on(one.deployment_uid)[1]
            if strategy in ("auto", "least_fragmentation") and gpus_of(found)[0] in mine:
                others = [inventory.gpu_row(uuid) for uuid in inventory.gpus.uuid if uuid not in mine]
                assert all(inventory.gpus.free[row] < need for row in others if row is not None)
            inventory.reserve(found, one.deployment_uid)
            present.append(found)


def _found_anew(inventory: Inventory, one: Ask) -> Placed | None:
    kept, inventory.searches = inventory.searches, OrderedDict()
    found = find(inventory, one)
    inventory.searches = kept
    return found


def test_no_search_is_kept_for_deployments_that_are_gone() -> None:
    """Each deployment of two replicas has a search of its own, since the second keeps apart from the first."""
    inventory = Fleet().add("a", [G80] * 4).inventory()
    for n in range(300):
        uid = f"d{n}"
        first, second = replicas(2, "auto", uid=uid)
        placed = find(inventory, first)
        assert isinstance(placed, Placed)
        load = InstanceLoad(first.instance, uid, (placed.workers[0],), tuple(claim.device for claim in placed.claims))
        inventory.upsert_load([load])
        assert isinstance(find(inventory, second), Placed)
        inventory.remove_load([load.instance])
    assert len(inventory.searches) < 20
