"""The placement cases of one worker per instance, by number: what is claimed, and what never fits."""

from dataclasses import replace
from typing import Any

import pytest

from controller.domain.placement import Need, Placed
from support.builders.asks import A80, NEED, W16, W24A, ask, one, placed, refused
from support.builders.fleet import GIB, Fleet


def test_c01_claims_what_is_needed_and_no_more() -> None:
    decision = one(Fleet().add("w24a", [W24A]), ask("q06b"))
    assert isinstance(decision, Placed)
    assert [(c.device, c.exclusive) for c in decision.claims] == [("w24a/0", False), ("host-w24a", False)]
    assert decision.claims[0].memory_mib == pytest.approx(4 * GIB, rel=0.1)


def test_c05_small_model() -> None:
    assert placed(Fleet().add("w24a", [W24A]), ask("bge")) == ["w24a/0"]


def test_c06_host_memory() -> None:
    fleet = Fleet().add("w24a", [W24A], host_memory=64071)
    assert refused(fleet, ask("q06b", {"host_memory": "100GiB"})) == {"host_memory": 1}
    assert refused(fleet, ask("q06b", {"cpus": 65})) == {"cpu": 1}


def test_c08_splits_over_two_gpus() -> None:
    assert placed(Fleet().add("w16x2", [W16] * 2), ask("q8b")) == ["w16x2/0", "w16x2/1"]


def test_c09_heads_and_vocabulary_rule_out_splits() -> None:
    fleet = Fleet().add("w16x4", [W16] * 4)
    assert refused(fleet, ask(Need(NEED["s22"], heads=25, vocab=152064))) == {"heads_indivisible": 1}
    assert refused(fleet, ask(Need(NEED["s22"], heads=32, vocab=10001))) == {"vocab_indivisible": 1}
    assert len(placed(fleet, ask(Need(NEED["s40h28"], heads=28, vocab=152064)))) == 4


def test_c13_whole_gpus() -> None:
    decision = one(Fleet().add("w16x2", [W16] * 2), ask("s20g", {"gpu_memory": "all"}))
    assert isinstance(decision, Placed)
    assert [(c.device, c.memory_mib, c.exclusive) for c in decision.claims[:-1]] == [
        ("w16x2/0", W16, True),
        ("w16x2/1", W16, True),
    ]


def test_c14_too_large_for_all_gpus_together() -> None:
    assert refused(Fleet().add("w16x4", [W16] * 4), ask("q32b")) == {"need_gt_capacity": 1}


def test_c27_a_manual_choice_never_overcommits() -> None:
    wanted = ask("q32b", {"gpus": 2}, placement={"gpus": ["w16x4:0", "w16x4:1"]})
    assert refused(Fleet().add("w16x4", [W16] * 4), wanted) == {"need_gt_capacity": 1}


def test_c28_the_named_gpus_must_be_as_many_as_asked() -> None:
    fleet = Fleet().add("w16x4", [W16] * 4).add("other", [W16] * 4)
    wanted = ask("q8b", {"gpus": 4}, placement={"gpus": ["w16x4:0", "w16x4:1", "w16x4:2"]})
    assert refused(fleet, wanted) == {"count_mismatch": 1, "not_selected": 1}
    assert refused(fleet, ask(Need(NEED["q8b"], heads=28), {"gpus": 3})) == {"heads_indivisible": 2}


def test_c29_labels_cordon_and_readiness() -> None:
    fleet = Fleet().add("w24a", [W24A]).add("w16x2", [W16] * 2)
    assert refused(fleet, ask("q06b", placement={"labels": {"os": "Windows"}})) == {"label_mismatch": 2}
    fleet = Fleet().add("w24a", [W24A], schedulable=False).add("w16x2", [W16] * 2)
    assert placed(fleet, ask("q06b")) == ["w16x2/0"]
    fleet = Fleet().add("a80_1", [A80] * 2, ready=False).add("a80_3", [A80] * 2).add("a80_2", [A80] * 2)
    assert placed(fleet, ask("s14g")) == ["a80_2/0"]


def test_nothing_new_is_placed_where_the_disk_is_full() -> None:
    fleet = Fleet().add("full", [W24A], disk_full=True)
    for wanted in (
        ask("q06b"),
        ask("q06b", placement={"workers": ["full"]}),
        ask("q06b", placement={"gpus": ["full:0"]}),
    ):
        assert refused(fleet, wanted) == {"disk_pressure": 1}
    assert placed(fleet.add("w16x2", [W16] * 2), ask("q06b")) == ["w16x2/0"]
    inventory = fleet.inventory()
    inventory.upsert_workers([replace(fleet.workers["full"], disk_full=False)])
    inventory.upsert_workers([replace(fleet.workers["w16x2"], disk_full=True)])
    assert placed(inventory, ask("q06b")) == ["full/0"]


def test_labels_select() -> None:
    fleet = Fleet().add("a", [W24A], labels={"zone": "a"}).add("b", [W24A], labels={"zone": "b", "rack": "7"})
    assert placed(fleet, ask("q06b", placement={"labels": {"zone": "b", "rack": "7"}})) == ["b/0"]
    assert refused(fleet, ask("q06b", placement={"labels": {"zone": "a", "rack": "7"}})) == {"label_mismatch": 2}


ORDERS = [
    [({"gpus": 2, "exclusive": True}, 2), ({"gpus": 2, "gpu_memory": "36GiB", "exclusive": True}, 2), ({"gpus": 4}, 4)],
    [({"gpus": 4}, 4), ({"gpus": 2, "gpu_memory": "all"}, 2), ({"gpus": 2, "gpu_memory": "36GiB"}, 2)],
    [({"gpus": 2, "gpu_memory": "36GiB"}, 2), ({"gpus": 4}, 4), ({"gpus": 2, "exclusive": True}, 2)],
]


@pytest.mark.parametrize("order", ORDERS)
def test_n9_eight_distinct_gpus_in_every_order(order: list[tuple[dict[str, Any], int]]) -> None:
    inventory = Fleet().add("w", [40 * GIB] * 8).inventory()
    unknown = Need(None)
    taken = [uuid for resources, _ in order for uuid in placed(inventory, ask(unknown, resources))]
    assert len(taken) == len(set(taken)) == sum(count for _, count in order) == 8
    assert refused(inventory, ask(unknown, {"gpus": 1})) == {"exclusive_conflict": 1}
