"""Workers and GPUs named by hand: all of them must pass the checks, and nothing is placed elsewhere."""

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


def ask(*workers: str, gpus: tuple[str, ...] = (), count: int = 1, memory: int = GIB) -> Ask:
    return Ask("i", "d", (Layout(count, memory, False),), workers=workers, gpus=gpus)


def explain(fleet: Fleet, wanted: Ask) -> Explain:
    decision = place(fleet.inventory(), [wanted])[0]
    assert isinstance(decision, Unplaced), decision
    return decision.explain


def chosen(fleet: Fleet, wanted: Ask) -> list[str]:
    decision = place(fleet.inventory(), [wanted])[0]
    assert isinstance(decision, Placed), decision
    return gpus_of(decision)


@pytest.mark.parametrize(
    ("workers", "rejected", "reason"),
    [
        (("a", "b", "c"), {"not_all_selected_ready": 2, "not_ready": 1}, "not_all_selected_ready"),
        (("b", "c"), {"not_all_selected_ready": 1, "not_ready": 1, "not_selected": 1}, "not_all_selected_ready"),
        (("c",), {"not_ready": 1, "not_selected": 2}, "not_ready"),
    ],
)
def test_a_host_that_is_not_ready_is_never_used(
    workers: tuple[str, ...], rejected: dict[str, int], reason: str
) -> None:
    found = explain(three(ready=False), ask(*workers))
    assert found.rejected == rejected
    assert headline(found) == reason


def test_others_are_used_while_a_host_that_is_not_selected_is_not_ready() -> None:
    assert chosen(three(ready=False), ask("b")) == ["b/0"]
    assert chosen(three(ready=False), ask()) == ["a/0"]


@pytest.mark.parametrize(
    ("third", "reason"),
    [({"schedulable": False}, "cordoned"), ({"labels": {"zone": "x"}}, "label_mismatch"), ({"os": "plan9"}, "os_arch")],
)
def test_one_rejected_worker_rejects_the_whole_selection(third: dict[str, Any], reason: str) -> None:
    fleet = Fleet().add("a", [SIZE], labels={"zone": "z"}).add("c", [SIZE], **({"labels": {"zone": "z"}} | third))
    wanted = Ask(
        "i", "d", (Layout(1, GIB, False),), workers=("a", "c"), labels={"zone": "z"},
        compatibility=Compatibility(os=frozenset({"linux"})),
    )  # fmt: skip
    assert explain(fleet, wanted).rejected == {"not_all_selected_ready": 1, reason: 1}


def test_an_unknown_name_is_reported() -> None:
    found = explain(three(), ask("a", "none-such"))
    assert found.rejected == {"not_all_selected_ready": 2, "not_selected": 2}
    assert found.workers == sum(found.rejected.values())
    assert found.message.endswith("no such worker or GPU: none-such")
    found = explain(three(), ask(gpus=("a:7",)))
    assert headline(found) == "not_all_selected_ready"
    assert "a:7" in found.message


def test_gpus_by_uuid_and_by_index() -> None:
    assert chosen(three(), ask(gpus=("b:1",))) == ["b/1"]
    assert chosen(three(), ask(gpus=("b/1", "b:0"), count=2)) == ["b/0", "b/1"]


def test_the_same_gpu_named_twice_is_one_too_few() -> None:
    assert explain(three(), ask(gpus=("b/1", "b:1"), count=2)).rejected == {"count_mismatch": 1, "not_selected": 2}


def test_gpus_of_two_workers_are_not_one_instance() -> None:
    found = explain(three(), ask(gpus=("a:0", "b:0"), count=2))
    assert found.rejected == {"count_mismatch": 2, "not_selected": 1}
    assert found.nearest is not None
    assert found.nearest.message == "the named GPUs are on 2 workers, at most 1 allowed"


def test_gpus_must_be_on_the_named_workers() -> None:
    assert chosen(three(), ask("b", gpus=("b:1",))) == ["b/1"]
    assert explain(three(), ask("a", gpus=("b:1",))).rejected == {"count_mismatch": 1, "not_selected": 2}
    assert explain(three(), ask("a", gpus=("a:0", "b:0"))).rejected == {"count_mismatch": 1, "not_selected": 2}


def test_every_named_gpu_must_be_healthy_and_free() -> None:
    both = ask(gpus=("b:0", "b:1"), count=2, memory=9 * GIB)
    assert explain(three().set("b/1", healthy=False), both).rejected == {"gpu_unhealthy": 1, "not_selected": 2}
    assert explain(three().claim("b/1"), both).rejected == {"gpu_in_use": 1, "not_selected": 2}
    assert explain(three().claim("b/1", 8 * GIB), both).rejected == {"need_gt_free": 1, "not_selected": 2}
