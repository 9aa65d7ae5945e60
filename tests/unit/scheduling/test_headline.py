"""The reason code and the line of an explanation, from its counts."""

import pytest

from controller.scheduling.explain.unplaced import headline, one_line
from schemas.api.explain import Explain, NearestMiss


def nearest(code: str, **fields: float) -> NearestMiss:
    return NearestMiss(worker="w", code=code, message="need 2 GPUs, best 1 on w", **fields)


@pytest.mark.parametrize(
    ("rejected", "code", "expected"),
    [
        ({}, None, "not_ready"),
        ({"cpu": 2, "not_ready": 1}, None, "cpu"),  # the first
        ({"cpu": 2, "need_gt_free": 1}, "need_gt_free", "need_gt_free"),
        ({"cpu": 2}, "need_gt_free", "cpu"),  # the nearest is of no counted worker
        ({"not_selected": 3, "not_ready": 1}, "not_selected", "not_ready"),
        ({"not_selected": 3}, "not_selected", "not_selected"),
        ({"cpu": 2, "not_all_selected_ready": 1}, "cpu", "not_all_selected_ready"),
    ],
)
def test_the_headline_is_that_of_the_nearest_miss_or_of_most_workers(
    rejected: dict[str, int], code: str | None, expected: str
) -> None:
    explain = Explain(workers=4, rejected=rejected, nearest=None if code is None else nearest(code))
    assert headline(explain) == expected


@pytest.mark.parametrize(
    ("rejected", "held", "outside", "code", "line"),
    [
        ({"exclusive_conflict": 3}, {"exclusive_conflict": 1}, {}, "exclusive_conflict",
         "0/3 fit: 2 in shared use (need 2 GPUs, best 1 on w), 1 held"),
        ({"exclusive_conflict": 3}, {"exclusive_conflict": 3}, {}, "exclusive_conflict",
         "0/3 fit: 3 held (need 2 GPUs, best 1 on w)"),
        ({"label_mismatch": 2, "cpu": 1}, {}, {"label_mismatch": 2}, "cpu",
         "0/1 fit: 1 CPU (need 2 GPUs, best 1 on w)"),
        ({"label_mismatch": 2, "cpu": 1}, {}, {"label_mismatch": 2, "cpu": 1}, "cpu",
         "0/3 fit: 2 labels, 1 CPU (need 2 GPUs, best 1 on w)"),  # all are outside
        ({"label_mismatch": 1, "cpu": 1}, {}, {}, "os_arch", "0/2 fit: 1 CPU, 1 labels"),
    ],
)  # fmt: skip
def test_workers_that_others_hold_or_the_spec_leaves_out_are_counted_apart(
    rejected: dict[str, int], held: dict[str, int], outside: dict[str, int], code: str, line: str
) -> None:
    explain = Explain(workers=sum(rejected.values()), rejected=rejected, nearest=nearest(code))
    assert one_line(explain, held, outside) == line


@pytest.mark.parametrize(
    ("need", "free", "sizes"),
    [(38.0, 22.13, "need 38 GiB, best free 22.1"), (38.04, 38.0, "need 38.04 GiB, best free 38"),
     (0.5, 0.0, "need 0.5 GiB, best free 0")],
)  # fmt: skip
def test_sizes_are_rounded_unless_they_would_look_equal(need: float, free: float, sizes: str) -> None:
    at = nearest("need_gt_free", need_gib=need, free_gib=free)
    assert f"({sizes} on w)" in one_line(Explain(workers=1, rejected={"need_gt_free": 1}, nearest=at))


def test_ambiguous_and_unknown_names_end_the_line() -> None:
    explain = Explain(workers=1, rejected={"cpu": 1}, unknown=["x", "y"], ambiguous=["w:0: A or B"])
    assert one_line(explain) == "0/1 fit: 1 CPU; no such worker or GPU: x, y; ambiguous: w:0: A or B"


def test_without_a_message_the_nearest_worker_is_named() -> None:
    bare = NearestMiss(worker="w", code="cpu", message="")
    assert one_line(Explain(workers=1, rejected={"cpu": 1}, nearest=bare)) == "0/1 fit: 1 CPU (such as w)"
