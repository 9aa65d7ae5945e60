"""GPUs of several models on one host: together where they are alike, as over two hosts, or named one by one."""

from typing import Any

import pytest

from controller.domain.admission import InstanceLoad
from controller.domain.placement import Ask, Decision, Layout, Need, Placed, Unplaced
from controller.engines.registry import engine_for
from controller.scheduling.estimate import asks_for
from controller.scheduling.search.place import place
from schemas.manifest.deployment import DeploymentSpec
from support.builders.fleet import GIB, Fleet, gang_of, gpus_of

RTX_3090, RTX_4090, A100, H80 = 24_576, 24_564, 40_960, 81_559  # MiB, as drivers report them


def host(name: str, *sizes: int, fleet: Fleet | None = None) -> Fleet:
    """GPUs of one model by size."""
    made = (fleet or Fleet()).add(name, sizes)
    for index, size in enumerate(sizes):
        made.set(f"{name}/{index}", model=f"of {size}")
    return made


def ask(count: int, workers: int = 1, memory: int = 20 * GIB, **fields: Any) -> Ask:
    return Ask("i", "d", (Layout(count, memory, False, workers),), **fields)


def one(fleet: Fleet, wanted: Ask) -> Decision:
    return place(fleet.inventory(), [wanted])[0]


def placed(fleet: Fleet, wanted: Ask) -> list[str]:
    decision = one(fleet, wanted)
    assert isinstance(decision, Placed), decision
    return gpus_of(decision)


def refused(fleet: Fleet, wanted: Ask) -> dict[str, int]:
    decision = one(fleet, wanted)
    assert isinstance(decision, Unplaced), decision
    return decision.explain.rejected


@pytest.mark.parametrize("strategy", ["pack", "spread", "least_fragmentation"])
def test_a_3090_and_a_4090_serve_together_in_one_host(strategy: str) -> None:
    fleet = host("w", RTX_3090, RTX_4090)
    assert placed(fleet, ask(2, strategy=strategy)) == ["w/0", "w/1"]
    assert placed(fleet, ask(1, strategy=strategy)) in (["w/0"], ["w/1"])


def test_they_follow_the_rules_of_memory_and_heads() -> None:
    def wanted(heads: int) -> Ask:
        spec = DeploymentSpec.model_validate({"engine": "simulated", "args": {"memory": "36GiB"}})
        need = Need(36 * GIB, heads=heads, vocab=152_064)
        return asks_for(spec, need, engine_for(spec), instance="i", deployment_uid="d")

    assert placed(host("w", RTX_3090, RTX_4090), wanted(40)) == ["w/0", "w/1"]
    assert refused(host("w", RTX_3090, RTX_4090), wanted(25)) == {"heads_indivisible": 1}
    assert refused(host("w", RTX_3090, RTX_4090).claim("w/1", 10 * GIB), wanted(40)) == {"need_gt_free": 1}


def test_gpus_of_other_sizes_or_makes_do_not() -> None:
    assert refused(host("w", RTX_3090, A100), ask(2)) == {"mixed_accelerators": 1}
    other_make = host("w", RTX_3090, RTX_4090).set("w/1", vendor="amd")
    assert refused(other_make, ask(2)) == {"mixed_accelerators": 1}


def test_one_model_is_preferred_to_alike_ones() -> None:
    fleet = host("a", RTX_3090, RTX_4090)
    host("b", RTX_4090, RTX_4090, RTX_3090, fleet=fleet)
    assert placed(fleet, ask(2)) == ["b/0", "b/1"]
    assert placed(fleet.claim("b/0"), ask(2)) == ["a/0", "a/1"]


def test_a_claim_on_one_is_seen_by_the_next_search() -> None:
    inventory = host("w", RTX_3090, RTX_4090, RTX_4090).inventory()
    first, second = place(inventory, [Ask(f"i{n}", "d", ask(2).layouts) for n in range(2)])
    assert isinstance(first, Placed)
    assert gpus_of(first) == ["w/1", "w/2"]
    assert isinstance(second, Unplaced)
    inventory = host("w", RTX_3090, RTX_4090).inventory()
    decisions = place(inventory, [Ask(f"i{n}", "d", (Layout(2, 10 * GIB, False),)) for n in range(3)])
    assert [type(d) for d in decisions] == [Placed, Placed, Unplaced]
    inventory.upsert_load([InstanceLoad("x", "d", ("id-w",), ("w/0",))])


def test_alike_gpus_in_a_host_serve_with_those_of_another() -> None:
    fleet = host("a", RTX_3090, RTX_4090)
    host("b", RTX_4090, RTX_3090, fleet=fleet)
    decision = one(fleet, ask(4, workers=2))
    assert isinstance(decision, Placed)
    assert gang_of(decision) == {"a": ["a/0", "a/1"], "b": ["b/0", "b/1"]}


@pytest.mark.parametrize("further", [23_500, 24_000, 25_000, 25_700, 8 * GIB])
def test_one_more_host_never_parts_what_was_alike(further: int) -> None:
    fleet = host("a", RTX_3090)
    host("b", 25_600, fleet=fleet)  # 4.2 % larger
    assert len(placed(fleet, ask(2, workers=2))) == 2
    host("c", further, fleet=fleet).claim("c/0")
    assert sorted(placed(fleet, ask(2, workers=2))) == ["a/0", "b/0"]
    same_model = fleet.set("c/0", model=f"of {RTX_3090}")  # a smaller one of the same model
    assert sorted(placed(same_model, ask(2, workers=2))) == ["a/0", "b/0"]


# The sizes that one name is sold with: RTX 4060 Ti, RTX 3080. In GB, as their names say.
TWO_SIZES = [(8, 16), (10, 12)]


@pytest.mark.parametrize(("small", "large"), TWO_SIZES)
@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize("strategy", ["pack", "spread", "least_fragmentation"])
def test_two_sizes_under_one_name_serve_with_another_model(small: int, large: int, each: int, strategy: str) -> None:
    for size in (small, large):
        fleet = Fleet().add("a", [small * GIB] * each + [large * GIB] * each)
        host("b", *[size * GIB - 8] * each, fleet=fleet)  # another model, about as large as one of the sizes
        decision = one(fleet, ask(2 * each, workers=2, memory=(size - 1) * GIB, strategy=strategy))
        assert isinstance(decision, Placed), decision
        first = each if size == large else 0
        assert gang_of(decision) == {
            "a": [f"a/{n}" for n in range(first, first + each)], "b": [f"b/{n}" for n in range(each)],
        }  # fmt: skip


@pytest.mark.parametrize(("small", "large"), TWO_SIZES)
def test_two_sizes_under_one_name_serve_together(small: int, large: int) -> None:
    here = Fleet().add("a", [small * GIB, large * GIB])
    assert placed(here, ask(2, memory=(small - 1) * GIB)) == ["a/0", "a/1"]
    assert refused(here, ask(2, memory=(large - 1) * GIB)) == {"need_gt_capacity": 1}
    apart = Fleet().add("a", [small * GIB]).add("b", [large * GIB])
    assert placed(apart, ask(2, workers=2, memory=(small - 1) * GIB)) == ["a/0", "b/0"]


def test_a_size_under_one_name_does_not_serve_with_a_model_of_the_other_size() -> None:
    fleet = Fleet().add("a", [8 * GIB, 16 * GIB]).claim("a/1", 16 * GIB)
    host("b", 16 * GIB, fleet=fleet)
    assert refused(fleet, ask(2, workers=2, memory=7 * GIB)) == {"mixed_accelerators": 2}


def test_a_claim_on_one_of_two_sizes_is_seen_by_the_next_search() -> None:
    fleet = Fleet().add("a", [8 * GIB, 16 * GIB])
    inventory = host("b", 16 * GIB - 8, 16 * GIB - 8, fleet=fleet).inventory()
    layouts = ask(2, workers=2, memory=12 * GIB).layouts
    first, second = place(inventory, [Ask(f"i{n}", "d", layouts) for n in range(2)])
    assert isinstance(first, Placed)
    assert isinstance(second, Unplaced)


def test_gpus_named_one_by_one_may_be_unlike() -> None:
    fleet = host("a", RTX_3090, H80)
    host("b", A100, fleet=fleet)
    here = ask(2, gpus=("a:0", "a:1"), all_gpus=True)
    assert placed(fleet, here) == ["a/0", "a/1"]
    uneven = ask(3, workers=2, gpus=("b:0", "a:0", "a:1"), all_gpus=True)
    assert placed(fleet, uneven) == ["a/0", "a/1", "b/0"]
    assert refused(fleet, ask(2, gpus=("a:0", "a:1"))) == {"mixed_accelerators": 1, "not_selected": 1}  # a pool
    too_much = ask(2, memory=30 * GIB, gpus=("a:0", "a:1"), all_gpus=True)
    assert refused(fleet, too_much) == {"need_gt_capacity": 1, "not_selected": 1}
    other_make = fleet.set("a/1", vendor="amd")
    assert refused(other_make, here) == {"mixed_accelerators": 1, "not_selected": 1}
