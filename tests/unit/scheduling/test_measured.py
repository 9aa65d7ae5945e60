"""The free memory of a GPU: the ledger's figure, less what is reserved, less foreign use without a claim."""

import pytest

from controller.domain.placement import Ask, Compatibility, Layout, Placed, Unplaced
from controller.scheduling.search.place import place
from schemas.placement_reasons import Reason
from support.builders.fleet import GIB, Fleet, gpus_of

SIZE = 16 * GIB
SHARED, WHOLE = Layout(1, 4 * GIB, exclusive=False), Layout(1, 0, exclusive=True)


def decide(fleet: Fleet, layout: Layout, **fields: object) -> list[str] | dict[str, int]:
    decision = place(fleet.inventory(), [Ask("i", "d", (layout,), **fields)])[0]  # type: ignore[arg-type] # fields of Ask
    return gpus_of(decision) if isinstance(decision, Placed) else decision.explain.rejected


@pytest.mark.parametrize("gpus", [(), ("w16x2:0",)])
def test_c32_foreign_use_is_not_free(gpus: tuple[str, ...]) -> None:
    fleet = Fleet().add("w16x2", [SIZE] * 2).set("w16x2/0", foreign_mib=16_000).set("w16x2/1", foreign_mib=16_000)
    assert decide(fleet, SHARED, gpus=gpus) == {"gpu_in_use": 1}
    assert decide(fleet, WHOLE, gpus=gpus) == {"gpu_in_use": 1}


def test_a_little_foreign_use_leaves_capacity_for_shares_but_not_for_a_whole_claim() -> None:
    fleet = Fleet().add("w", [SIZE]).set("w/0", foreign_mib=2 * GIB)
    assert decide(fleet, SHARED) == ["w/0"]
    assert decide(fleet, WHOLE) == {"gpu_in_use": 1}
    fleet.claim("w/0", 11 * GIB)
    assert decide(fleet, SHARED) == {"gpu_in_use": 1}
    fleet.claim("w/0", 2 * GIB)
    assert decide(fleet, SHARED) == {"need_gt_free": 1}  # too little by the ledger already


def test_only_a_whole_claim_gets_the_reserved_memory() -> None:
    fleet = Fleet().add("w", [SIZE], host_memory=8 * GIB).set("w/0", reserved_mib=GIB).set("host-w", reserved_mib=GIB)
    assert decide(fleet, Layout(1, 15 * GIB, exclusive=False)) == ["w/0"]
    assert decide(fleet, Layout(1, 15 * GIB + 1, exclusive=False)) == {"need_gt_capacity": 1}
    decision = place(fleet.inventory(), [Ask("i", "d", (WHOLE,), host_memory_mib=7 * GIB)])[0]
    assert isinstance(decision, Placed)
    assert decision.claims[0].memory_mib == SIZE
    assert decide(fleet, SHARED, host_memory_mib=7 * GIB + 1) == {"host_memory": 1}


def test_the_nearest_miss_reports_what_is_really_free() -> None:
    fleet = Fleet().add("w", [SIZE]).set("w/0", foreign_mib=2 * GIB, reserved_mib=GIB).claim("w/0", 10 * GIB)
    decision = place(fleet.inventory(), [Ask("i", "d", (Layout(1, 6 * GIB, exclusive=False),))])[0]
    assert isinstance(decision, Unplaced)
    assert decision.explain.nearest is not None
    assert (decision.explain.nearest.need_gib, decision.explain.nearest.free_gib) == (6.0, 3.0)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout(1, 12 * GIB, exclusive=False), "need 12.00 GiB, best free 11.00 on w"),
        (WHOLE, "need 1 unused GPU, best 0 on w"),
    ],
)
def test_foreign_use_is_reported_as_memory_where_a_share_would_do(layout: Layout, message: str) -> None:
    fleet = Fleet().add("w", [SIZE]).set("w/0", foreign_mib=5 * GIB)
    decision = place(fleet.inventory(), [Ask("i", "d", (layout,))])[0]
    assert isinstance(decision, Unplaced)
    assert decision.explain.nearest is not None
    assert (decision.explain.nearest.code, decision.explain.nearest.message) == ("gpu_in_use", message)


@pytest.mark.parametrize("gpus", [(), ("w:0",)])
def test_an_engine_runs_on_its_vendors_only(gpus: tuple[str, ...]) -> None:
    fleet = Fleet().add("w", [SIZE, SIZE]).set("w/0", vendor="amd", model="a").set("w/1", vendor="amd", model="b")
    nvidia = Compatibility(vendors=frozenset({"nvidia"}))
    assert decide(fleet, SHARED, compatibility=nvidia, gpus=gpus) == {"engine_unsupported": 1}
    assert decide(fleet, SHARED, compatibility=Compatibility(vendors=frozenset({"amd"})), gpus=gpus) == ["w/0"]
    assert decide(fleet, SHARED, gpu_models=("b",)) == ["w/1"]
    assert decide(fleet, Layout(0, 0, exclusive=False), compatibility=nvidia) == []


def test_layouts_that_the_model_rules_out_are_reported_only_where_they_would_help() -> None:
    three = ((Layout(3, 10 * GIB, exclusive=False), Reason.HEADS_INDIVISIBLE),)
    one = Layout(1, 30 * GIB, exclusive=False)
    wanted = Ask("i", "d", (one,), refused=(Reason.HEADS_INDIVISIBLE,), tried=three)
    for size, expected in ((7 * GIB, "need_gt_capacity"), (12 * GIB, "heads_indivisible")):
        fleet = Fleet().add("w", [size] * 4)
        decision = place(fleet.inventory(), [wanted])[0]
        assert isinstance(decision, Unplaced)
        assert decision.explain.rejected == {expected: 1}
        assert decision.explain.nearest is not None
        assert decision.explain.nearest.code == expected


def test_the_next_engine_is_taken_where_the_best_fits_nowhere() -> None:
    fleet = Fleet().add("mac", [SIZE], os="darwin")
    second = Ask("i", "d", (SHARED,), engine="llama-cpp")
    best = Ask(
        "i", "d", (SHARED,), engine="vllm", compatibility=Compatibility(os=frozenset({"linux"})), otherwise=second
    )
    decision = place(fleet.inventory(), [best])[0]
    assert isinstance(decision, Placed)
    assert decision.engine == "llama-cpp"
    decision = place(fleet.claim("mac/0").inventory(), [best])[0]
    assert isinstance(decision, Unplaced)
    assert decision.explain.rejected == {"gpu_in_use": 1}  # that of the engine which came nearest
