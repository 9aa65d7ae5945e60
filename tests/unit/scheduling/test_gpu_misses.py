"""Which GPUs could be selected by hand, and why others could not: code and words of each."""

from dataclasses import replace
from typing import Any

import pytest

from controller.domain.placement import Ask, Layout
from controller.scheduling.explain.gpu_misses import gpu_misses
from schemas.placement_reasons import Reason
from support.builders.fleet import GIB, Fleet

G80 = 80 * GIB
ONE = Layout(1, 20 * GIB, False)


def shown(fleet: Fleet, **fields: Any) -> list[tuple[str, str]]:
    """The code and the message of each GPU."""
    misses = gpu_misses(fleet.inventory(), Ask("i", "d", **{"layouts": (ONE,), **fields}))
    codes, messages = misses.texts()
    each = range(len(codes))
    assert [misses.code(row) for row in each] == codes
    assert [misses.message(row) for row in each] == messages
    return list(zip(codes, messages, strict=True))


def fleet() -> Fleet:
    return Fleet().add("a", [G80])


@pytest.mark.parametrize(
    ("made", "fields", "code", "message"),
    [
        (fleet(), {}, "", ""),
        (fleet(), {"layouts": (Layout(1, G80, True),)}, "", ""),
        (fleet(), {"layouts": (Layout(1, 81 * GIB, False),)}, "need_gt_capacity", "need 81.00 GiB, 80.00 in all"),
        (fleet(), {"min_gpu_mib": 96 * GIB}, "need_gt_capacity", "need 96.00 GiB, 80.00 in all"),
        (
            fleet().set("a/0", reserved_mib=2 * GIB),
            {"layouts": (Layout(1, 79 * GIB, False),)},
            "need_gt_capacity",
            "need 79.00 GiB, 78.00 in all",
        ),
        (fleet().set("a/0", reserved_mib=2 * GIB), {"layouts": (Layout(1, 79 * GIB, True),)}, "", ""),
        (fleet().claim("a/0", 70 * GIB), {}, "need_gt_free", "need 20.00 GiB, 10.00 free"),
        (fleet().claim("a/0", 60 * GIB), {}, "", ""),
        (fleet().claim("a/0"), {}, "gpu_in_use", "another instance has it whole"),
        (
            fleet().claim("a/0", GIB),
            {"layouts": (Layout(1, 0, True),)},
            "exclusive_conflict",
            "other instances use it, and a whole GPU is needed",
        ),
        (
            fleet(),
            {"host_memory_mib": 2048 * GIB},
            "host_memory",
            "need 2048.00 GiB, 1024.00 of main memory free on the worker",
        ),
        (fleet(), {"cpu_milli": 64_500}, "cpu", "need 64.5 cores, 64 free on the worker"),
        (
            fleet().set("host-a", claimed_cpu_milli=1_000, claimed_mib=24 * GIB),
            {"cpu_milli": 64_000},
            "cpu",
            "need 64 cores, 63 free on the worker",
        ),
        (
            fleet().set("host-a", claimed_cpu_milli=1_000, claimed_mib=24 * GIB),
            {"host_memory_mib": 1024 * GIB},
            "host_memory",
            "need 1024.00 GiB, 1000.00 of main memory free on the worker",
        ),
        (fleet(), {"layouts": (Layout(2, GIB, False),)}, "count_mismatch", "need 2 such GPUs on one worker, 1 there"),
        (fleet(), {"layouts": (Layout(2, GIB, False, 2),)}, "", ""),  # one of each worker
        (fleet(), {"layouts": (Layout(0, 0, False),)}, "count_mismatch", "the instance takes no GPU"),
        (fleet(), {"layouts": (Layout(1, G80 * 2, False), ONE)}, "", ""),
        (
            fleet(),
            {"layouts": (), "refused": (Reason.HEADS_INDIVISIBLE,)},
            "heads_indivisible",
            "the model cannot be placed on any GPU: ",
        ),
        (Fleet().add("a", [G80], ready=False), {}, "not_ready", "not ready"),
        (
            Fleet().add("a", [G80], ready=False),
            {"layouts": (), "refused": (Reason.HEADS_INDIVISIBLE,)},
            "not_ready",
            "not ready",
        ),
        (Fleet().add("a", [G80], schedulable=False), {}, "cordoned", "the worker is cordoned"),
        (fleet().set("a/0", healthy=False), {}, "gpu_unhealthy", "unhealthy"),
        (fleet().set("a/0", mig_mode=True), {}, "mig_mode", "in MIG mode: only its slices can be claimed"),
    ],
)  # fmt: skip
def test_the_reason_of_a_gpu_in_words(made: Fleet, fields: dict[str, Any], code: str, message: str) -> None:
    ((found, words),) = shown(made, **fields)
    assert found == code
    assert words.startswith(message) if message.endswith(" ") else words == message


def test_what_is_selected_by_hand_does_not_count() -> None:
    two = Fleet().add("a", [G80]).add("b", [G80])
    assert shown(two, workers=("b",)) == [("", ""), ("", "")]
    assert shown(two, gpus=("b/0",)) == [("", ""), ("", "")]


def test_as_many_gpus_as_the_layout_takes_must_pass_on_one_worker() -> None:
    pair = (Layout(2, GIB, False),)
    fleet = Fleet().add("a", [G80] * 2).add("b", [G80] * 3).claim("b/0").claim("b/1")
    short = ("count_mismatch", "need 2 such GPUs on one worker, 1 there")
    held = ("gpu_in_use", "another instance has it whole")
    assert shown(fleet, layouts=pair) == [("", ""), ("", ""), held, held, short]


def test_the_nearest_of_several_layouts_and_engines_is_reported() -> None:
    made = fleet().claim("a/0", 70 * GIB)
    large, small = Layout(1, 90 * GIB, False), Layout(1, 30 * GIB, False)
    nearest = [("need_gt_free", "need 30.00 GiB, 10.00 free")]
    for layouts in ((large, small), (small, large)):
        assert shown(made, layouts=layouts) == nearest
    other = Ask("i", "d", (small,))
    assert shown(made, layouts=(large,), otherwise=other) == nearest
    assert shown(made, layouts=(small,), otherwise=replace(other, layouts=(large,))) == nearest
    smaller = Layout(1, 25 * GIB, False)
    assert shown(made, layouts=(small, smaller)) == [("need_gt_free", "need 25.00 GiB, 10.00 free")], "the last layout"
    as_near = replace(other, layouts=(Layout(1, 25 * GIB, False),))
    assert shown(made, layouts=(small,), otherwise=as_near) == nearest, "of equally near engines the first"
    without = replace(other, layouts=(Layout(0, 0, False),))
    assert shown(made, layouts=(small,), otherwise=without) == nearest
    assert shown(fleet(), layouts=(small,), otherwise=replace(other, layouts=(large,))) == [("", "")]
