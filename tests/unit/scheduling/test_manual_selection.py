"""Workers and GPUs named by hand: a pool, or all of them. They pass the same checks; nothing is placed elsewhere."""

from dataclasses import replace
from typing import Any

import pytest

from controller.domain.placement import Ask, Compatibility, Layout, Placed, Unplaced
from controller.scheduling.explain.unplaced import headline
from controller.scheduling.search.place import place
from schemas.api.explain import Explain
from support.builders.fleet import GIB, Fleet, gpus_of

SIZE = 16 * GIB


def three(**third: Any) -> Fleet:
    return Fleet().add("a", [SIZE] * 2).add("b", [SIZE] * 2).add("c", [SIZE] * 2, **third)


def ask(*workers: str, count: int = 1, memory: int = GIB, **fields: Any) -> Ask:
    return Ask("i", "d", (Layout(count, memory, False),), workers=workers, **fields)


def explain(fleet: Fleet, wanted: Ask) -> Explain:
    decision = place(fleet.inventory(), [wanted])[0]
    assert isinstance(decision, Unplaced), decision
    return decision.explain


def chosen(fleet: Fleet, wanted: Ask) -> list[str]:
    decision = place(fleet.inventory(), [wanted])[0]
    assert isinstance(decision, Placed), decision
    return gpus_of(decision)


@pytest.mark.parametrize(
    ("workers", "rejected"),
    [(("c",), {"not_ready": 1, "not_selected": 2}), (("c", "none-such"), {"not_ready": 2, "not_selected": 2})],
)
def test_a_pool_of_which_nothing_is_ready(workers: tuple[str, ...], rejected: dict[str, int]) -> None:
    found = explain(three(ready=False), ask(*workers))
    assert found.rejected == rejected
    assert headline(found) == "not_ready"


def test_what_is_not_ready_is_out_of_the_pool_and_the_rest_is_used() -> None:
    assert chosen(three(ready=False), ask("b", "c")) == ["b/0"]
    assert chosen(three(ready=False), ask("a", "b", "c")) == ["a/0"]
    assert chosen(three(ready=False), ask(gpus=("c:0", "c:1", "b:1"))) == ["b/1"]
    found = explain(three(ready=False), ask(gpus=("c:0", "c:1")))
    assert (found.rejected, headline(found)) == ({"not_ready": 1, "not_selected": 2}, "not_ready")


def test_others_are_used_while_a_host_that_is_not_selected_is_not_ready() -> None:
    assert chosen(three(ready=False), ask("b")) == ["b/0"]
    assert chosen(three(ready=False), ask()) == ["a/0"]


@pytest.mark.parametrize(
    "third", [{"ready": False}, {"schedulable": False}, {"labels": {"zone": "x"}}, {"os": "plan9"}]
)
def test_the_pool_is_what_passes_the_same_checks(third: dict[str, Any]) -> None:
    fleet = Fleet().add("a", [SIZE], **({"labels": {"zone": "z"}} | third))
    fleet.add("c", [SIZE], labels={"zone": "z"})
    wanted = Ask(
        "i", "d", (Layout(1, GIB, False),), workers=("a", "c"), labels={"zone": "z"},
        compatibility=Compatibility(os=frozenset({"linux"})),
    )  # fmt: skip
    assert chosen(fleet, wanted) == ["c/0"]


REASONS: list[tuple[dict[str, Any], str]] = [
    ({"ready": False}, "not_ready"),
    ({"schedulable": False}, "cordoned"),
    ({"labels": {"zone": "x"}}, "label_mismatch"),
    ({"os": "plan9"}, "os_arch"),
]


@pytest.mark.parametrize(("third", "reason"), REASONS)
@pytest.mark.parametrize("by", ["workers", "gpus"])
def test_one_that_fails_rejects_all_where_all_are_taken(third: dict[str, Any], reason: str, by: str) -> None:
    fleet = Fleet().add("a", [SIZE], labels={"zone": "z"}).add("c", [SIZE], **({"labels": {"zone": "z"}} | third))
    names: dict[str, Any] = {"workers": ("a", "c"), "all_workers": True}
    names = names if by == "workers" else {"gpus": ("a:0", "c:0"), "all_gpus": True}
    wanted = Ask(
        "i", "d", (Layout(2, GIB, False, workers=2),), labels={"zone": "z"},
        compatibility=Compatibility(os=frozenset({"linux"})), **names,
    )  # fmt: skip
    found = explain(fleet, wanted)
    assert found.rejected == {"not_all_selected_ready": 1, reason: 1}
    assert headline(found) == "not_all_selected_ready"


def test_all_of_the_named_workers_are_taken() -> None:
    wanted = Ask("i", "d", (Layout(2, GIB, False, workers=2),), workers=("c", "a"), all_workers=True)
    assert chosen(three(), wanted) == ["a/0", "c/0"]
    found = explain(three(), replace(wanted, workers=("a", "none-such")))
    assert found.rejected == {"not_all_selected_ready": 2, "not_selected": 2}


def test_an_unknown_name_is_reported_and_the_rest_of_the_pool_is_used() -> None:
    assert chosen(three(), ask("a", "none-such")) == ["a/0"]
    assert chosen(three(), ask(gpus=("a:7", "GPU-none", "b:0"))) == ["b/0"]
    found = explain(three(), ask("a", "none-such", count=3))
    assert found.rejected == {"count_mismatch": 1, "not_ready": 1, "not_selected": 2}
    assert headline(found) == "count_mismatch"
    assert found.workers == sum(found.rejected.values())
    assert found.message.endswith("no such worker or GPU: none-such")
    assert found.unknown == ["none-such"]
    found = explain(three(), ask(gpus=("a:7", "b:0"), count=2, all_gpus=True))
    assert headline(found) == "not_all_selected_ready"
    assert "a:7" in found.message


def test_replicas_share_a_pool_of_gpus() -> None:
    pool = ("a:0", "a:1", "b:0", "b:1", "c:0", "c:1")
    wanted = Ask("i", "d", (Layout(2, 0, True),), gpus=pool)
    inventory = three().set("b/1", healthy=False).inventory()
    decisions = place(inventory, [replace(wanted, instance=f"i{n}") for n in range(3)])
    assert [gpus_of(d) for d in decisions if isinstance(d, Placed)] == [["a/0", "a/1"], ["c/0", "c/1"]]
    assert isinstance(decisions[2], Unplaced)
    assert decisions[2].explain.rejected == {"exclusive_conflict": 2, "gpu_unhealthy": 1}


def test_a_cordoned_gpu_is_not_taken_by_hand_either() -> None:
    fleet = three().set("b/1", cordoned=True)
    assert chosen(fleet, ask(gpus=("b:1", "c:0"))) == ["c/0"]
    found = explain(fleet, ask(gpus=("b/1",)))
    assert found.rejected == {"gpu_cordoned": 1, "not_selected": 2}
    inventory = fleet.inventory()
    wanted = ask(gpus=("b/1",))
    assert isinstance(place(inventory, [wanted])[0], Unplaced)
    inventory.upsert_devices([replace(inventory.device("b/1"), cordoned=False)])
    assert isinstance(place(inventory, [wanted])[0], Placed), "kept searches see the end of a cordon"


def test_gpus_by_uuid_and_by_index() -> None:
    assert chosen(three(), ask(gpus=("b:1",))) == ["b/1"]
    assert chosen(three(), ask(gpus=("b/1", "b:0"), count=2, all_gpus=True)) == ["b/0", "b/1"]


def test_an_index_that_gpus_of_two_makes_have_is_ambiguous() -> None:
    fleet = Fleet().add("mix", [SIZE] * 3).set("mix/1", vendor="amd", index=0)
    found = explain(fleet, ask(gpus=("mix:0",)))
    said = "mix:0 means mix/1 (amd) or mix/0 (nvidia); write the UUID"
    assert (found.ambiguous, found.unknown) == ([said], [])
    assert said in found.message
    assert chosen(fleet, ask(gpus=("mix:0", "mix:2"))) == ["mix/2"]
    assert chosen(fleet, ask(gpus=("mix/1",))) == ["mix/1"]


def test_the_same_gpu_named_twice_is_one_too_few() -> None:
    twice = ask(gpus=("b/1", "b:1"), count=2, all_gpus=True)
    assert explain(three(), twice).rejected == {"count_mismatch": 1, "not_selected": 2}


def test_gpus_of_two_workers_are_not_one_instance() -> None:
    found = explain(three(), ask(gpus=("a:0", "b:0"), count=2, all_gpus=True))
    assert found.rejected == {"count_mismatch": 2, "not_selected": 1}
    assert found.nearest is not None
    assert found.nearest.message == "the named GPUs are on 2 workers, at most 1 allowed"


def test_gpus_must_be_on_the_named_workers() -> None:
    assert chosen(three(), ask("b", gpus=("b:1",))) == ["b/1"]
    assert chosen(three(), ask("a", gpus=("a:0", "b:0"))) == ["a/0"]
    assert explain(three(), ask("a", gpus=("b:1",))).rejected == {"count_mismatch": 1, "not_selected": 2}
    both = ask("a", gpus=("a:0", "b:0"), count=2, all_gpus=True)
    assert explain(three(), both).rejected == {"count_mismatch": 1, "not_selected": 2}


def test_every_named_gpu_must_be_healthy_and_free_where_all_are_taken() -> None:
    both = ask(gpus=("b:0", "b:1"), count=2, memory=9 * GIB, all_gpus=True)
    assert explain(three().set("b/1", healthy=False), both).rejected == {"gpu_unhealthy": 1, "not_selected": 2}
    assert explain(three().claim("b/1"), both).rejected == {"gpu_in_use": 1, "not_selected": 2}
    assert explain(three().claim("b/1", 8 * GIB), both).rejected == {"need_gt_free": 1, "not_selected": 2}
