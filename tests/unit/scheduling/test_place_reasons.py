"""What an instance that fits nowhere is told: reason codes, the nearest miss and the one-line message."""

from typing import Any

import pytest

from controller.domain.placement import Ask, Compatibility, Layout, Need, Placed, Unplaced
from controller.scheduling.estimate import asks_for
from controller.scheduling.explain.unplaced import headline
from controller.scheduling.search.place import place
from schemas.manifest.deployment import DeploymentSpec
from schemas.placement_reasons import Reason
from support.builders.asks import A80, NEED, VLLM_LIKE, W16, W24A, ask, one, placed, refused, spec
from support.builders.fleet import GIB, Fleet


def test_c02_too_large_names_the_nearest_miss_in_gib() -> None:
    decision = one(Fleet().add("w24a", [W24A]), ask("q32b"))
    assert isinstance(decision, Unplaced)
    nearest = decision.explain.nearest
    assert nearest is not None
    assert (nearest.code, nearest.worker, nearest.free_gib, nearest.need_gib) == (
        "need_gt_capacity", "w24a", 24.23, 75.23,
    )  # fmt: skip
    assert decision.explain.rejected == {"need_gt_capacity": 1}
    assert decision.explain.message == "0/1 fit: 1 VRAM (need 75.2 GiB, best free 24.2 on w24a)"


def test_where_the_model_rules_out_every_layout_smaller_workers_keep_their_own_reason() -> None:
    fleet = Fleet().add("two", [W16] * 2).add("four", [W16] * 4).add("small", [GIB] * 4)
    decision = one(fleet, ask(Need(NEED["q8b"], heads=28), {"gpus": 3}))
    assert isinstance(decision, Unplaced)
    assert decision.explain.rejected == {"heads_indivisible": 1, "count_mismatch": 1, "need_gt_capacity": 1}
    assert decision.explain.nearest is not None
    assert (decision.explain.nearest.worker, decision.explain.nearest.code) == ("four", "heads_indivisible")
    assert decision.explain.nearest.message == "such as four"


@pytest.mark.parametrize(
    ("exclusive", "changes", "what"),
    [
        (False, {}, "GPUs"),
        (False, {"gpu_models": ("nvidia",)}, "GPUs"),
        (True, {"claim": True}, "unclaimed GPUs"),
        (False, {"cordoned": True}, "GPUs that are not cordoned"),
        (False, {"healthy": False}, "healthy GPUs"),
    ],
)
def test_of_several_counts_the_nearest_is_named(exclusive: bool, changes: dict[str, Any], what: str) -> None:
    """Two GPUs suffice, and larger layouts may be tried after that."""
    fleet = Fleet().add("w", [W24A] * 3 if what != "GPUs" else [W24A])
    for gpu in ("w/1", "w/2") if what != "GPUs" else ():
        fleet.claim(gpu, 20 * GIB) if "claim" in changes else fleet.set(gpu, **changes)
    layouts = tuple(Layout(count, 20 * GIB, exclusive) for count in (2, 4, 8, 16))
    decision = one(fleet, Ask("i", "d", layouts, gpu_models=changes.get("gpu_models", ())))
    assert isinstance(decision, Unplaced)
    assert decision.explain.nearest is not None
    assert decision.explain.nearest.message == f"need 2 {what}, best 1 on w"


def test_of_several_gangs_the_nearest_is_named() -> None:
    fleet = Fleet().add("w", [W24A])
    layouts = tuple(Layout(count, 20 * GIB, False, workers=count) for count in (2, 4, 8))
    decision = one(fleet, Ask("i", "d", layouts))
    assert isinstance(decision, Unplaced)
    assert decision.explain.nearest is not None
    assert decision.explain.nearest.message == "need 2 such workers, found 1"


@pytest.mark.parametrize(("named", "nearest"), [(3, 4), (5, 4), (9, 8)])
def test_of_several_counts_the_nearest_to_the_named_gpus_is_named(named: int, nearest: int) -> None:
    fleet = Fleet().add("w", [W24A] * 9)
    names = tuple(f"w:{n}" for n in range(named))
    layouts = tuple(Layout(count, 20 * GIB, False) for count in (1, 2, 4, 8))
    decision = one(fleet, Ask("i", "d", layouts, gpus=names, all_gpus=True))
    assert isinstance(decision, Unplaced)
    assert decision.explain.nearest is not None
    assert decision.explain.nearest.message == f"need {nearest} GPUs, {named} are named"


@pytest.mark.parametrize("placement", [{}, {"workers": ["mac"]}, {"gpus": ["mac:0"]}, {"gpus": ["mac/0"]}])
def test_c41_the_same_reasons_by_every_selection(placement: dict[str, Any]) -> None:
    fleet = Fleet().add("mac", [187 * GIB], os="darwin", arch="arm64", driver=None)
    fleet.add("lin", [A80] * 2, ready=False)
    wanted = spec(placement=placement)

    class VllmLike:
        name = "vllm"
        splits_models = False

        def chosen(self, _: str) -> "VllmLike":
            return self

        def compatibility(self, _: DeploymentSpec) -> Compatibility:
            return VLLM_LIKE

        def gpu_counts(self, _: DeploymentSpec) -> tuple[int, ...]:
            return (1,)

    asked = asks_for(wanted, Need(NEED["q32b"]), VllmLike(), instance="i", deployment_uid="d")
    assert refused(fleet, asked) == {"os_arch": 1, "not_ready": 1}


@pytest.mark.parametrize(
    ("changes", "wanted", "reason"),
    [
        ({"healthy": False}, Layout(1, GIB, False), Reason.GPU_UNHEALTHY),
        ({"mig_mode": True}, Layout(1, GIB, False), Reason.MIG_MODE),
        ({"cordoned": True}, Layout(1, GIB, False), Reason.GPU_CORDONED),
        ({"cordoned": True, "healthy": False}, Layout(1, GIB, False), Reason.GPU_CORDONED),
        ({}, Layout(2, GIB, False), Reason.COUNT_MISMATCH),
        ({"compute_capability": (6, 1)}, Layout(1, GIB, False), Reason.COMPUTE_CAPABILITY),
        ({"compute_capability": None}, Layout(1, GIB, False), Reason.COMPUTE_CAPABILITY),
        ({}, Layout(1, 17 * GIB, False), Reason.NEED_GT_CAPACITY),
        ({"claims": 1, "claimed_mib": GIB}, Layout(1, 0, True), Reason.EXCLUSIVE_CONFLICT),
        ({"claims": 1, "claimed_mib": 16 * GIB, "exclusive_claims": 1}, Layout(1, 0, False), Reason.GPU_IN_USE),
        ({"claims": 1, "claimed_mib": 10 * GIB}, Layout(1, 7 * GIB, False), Reason.NEED_GT_FREE),
    ],
)
def test_the_reason_of_a_gpu(changes: dict[str, Any], wanted: Layout, reason: Reason) -> None:
    fleet = Fleet().add("w", [16 * GIB]).set("w/0", **changes)
    asked = Ask("i", "d", (wanted,), compatibility=VLLM_LIKE)
    decision = one(fleet, asked)
    assert isinstance(decision, Unplaced)
    assert decision.explain.rejected == {reason: 1}
    assert headline(decision.explain) == reason


@pytest.mark.parametrize(
    ("facts", "changes", "message"),
    [
        ({"driver": "470.82.01"}, {}, "need driver 525, 470.82.01 on w"),
        ({}, {"compute_capability": (6, 1)}, "need 1 GPU of compute capability 7.0 or more, best 0 on w"),
    ],
)
def test_the_required_version_is_reported(facts: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    fleet = Fleet().add("w", [W16], **facts).set("w/0", **changes)
    decision = one(fleet, Ask("i", "d", (Layout(1, GIB, False),), compatibility=VLLM_LIKE))
    assert isinstance(decision, Unplaced)
    assert decision.explain.nearest is not None
    assert decision.explain.nearest.message == message


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"driver": "470.82.01"}, "driver_too_old"),
        ({"driver": None}, "driver_too_old"),
        ({"os": "windows"}, "os_arch"),
        ({"arch": "riscv64"}, "os_arch"),
        ({"arch": "arm64"}, None),
        ({"driver": "525.60.13"}, None),
    ],
)
def test_the_reason_of_a_platform(facts: dict[str, Any], reason: str | None) -> None:
    fleet = Fleet().add("w", [W16], **facts)
    asked = Ask("i", "d", (Layout(1, GIB, False),), compatibility=VLLM_LIKE)
    if reason is None:
        assert placed(fleet, asked) == ["w/0"]
    else:
        assert refused(fleet, asked) == {reason: 1}
    cpu_only = Ask("i", "d", (Layout(0, 0, False),), compatibility=VLLM_LIKE)
    assert isinstance(one(fleet, cpu_only), Placed) == (reason != "os_arch")  # a driver matters to GPUs only


@pytest.mark.parametrize(
    ("claims", "wanted", "words"),
    [
        ([], Layout(1, 0, True), "1 in shared use"),
        (["w/0"], Layout(1, 0, True), "1 in shared use"),  # one is shared, so whole GPUs alone are not why
        (["w/0", "w/1"], Layout(1, 0, True), "1 held"),
        (["w/0", "w/1"], Layout(1, GIB, False), "1 held"),
        (["w/0", "w/1"], Layout(2, 0, True), "1 held"),
    ],
)
def test_a_gpu_that_one_instance_has_whole_is_held(claims: list[str], wanted: Layout, words: str) -> None:
    fleet = Fleet().add("w", [W16] * 2)
    for uuid in ("w/0", "w/1"):
        one_has_it = uuid in claims
        fleet.set(uuid, claims=1, claimed_mib=W16 if one_has_it else GIB, exclusive_claims=int(one_has_it))
    decision = one(fleet, Ask("i", "d", (wanted,)))
    assert isinstance(decision, Unplaced)
    assert words in decision.explain.message


@pytest.mark.parametrize("state", [{}, {"ready": False}, {"schedulable": False}])
@pytest.mark.parametrize("pool", [{"workers": ("a", "b")}, {"labels": {"pool": "x"}}, {"gpus": ("a:0", "b:0")}])
def test_the_message_of_a_pool_counts_its_workers_alone(pool: dict[str, Any], state: dict[str, Any]) -> None:
    fleet = Fleet()
    for name in ("a", "b"):
        fleet.add(name, [W16], labels={"pool": "x"})
    for name in ("c", "d", "e"):
        fleet.add(name, [W24A], labels={"pool": "y"}, **state)
    decision = one(fleet, Ask("i", "d", (Layout(1, 20 * GIB, False),), **pool))
    assert isinstance(decision, Unplaced)
    assert decision.explain.message.startswith("0/2 fit: 2 VRAM (")
    assert (decision.explain.workers, sum(decision.explain.rejected.values())) == (5, 5)
    assert headline(decision.explain) == Reason.NEED_GT_CAPACITY


def test_where_no_worker_is_in_the_pool_the_message_counts_all() -> None:
    fleet = Fleet().add("a", [W16]).add("b", [W16], ready=False)
    decision = one(fleet, Ask("i", "d", (Layout(1, GIB, False),), labels={"zone": "z"}))
    assert isinstance(decision, Unplaced)
    assert decision.explain.message.startswith("0/2 fit: 1 labels")


def test_a_pool_that_is_silent_is_why_and_not_what_is_outside_of_it() -> None:
    fleet = Fleet().add("a", [W16], labels={"pool": "x"}, ready=False).add("b", [W16])
    decision = one(fleet, Ask("i", "d", (Layout(1, GIB, False),), labels={"pool": "x"}))
    assert isinstance(decision, Unplaced)
    assert decision.explain.message.startswith("0/1 fit: 1 not ready")
    assert headline(decision.explain) == Reason.NOT_READY


def test_the_one_line_message() -> None:
    fleet = Fleet()
    for n in range(8):
        fleet.add(f"gpu-{n}", [W24A]).claim(f"gpu-{n}/0", 2 * GIB if n == 7 else 20 * GIB)
    for n in range(3):
        fleet.add(f"silent-{n}", [W24A], ready=False)
    fleet.add("mac", [W24A], os="darwin")
    decision = one(fleet, Ask("i", "d", (Layout(1, 24 * GIB, False),), compatibility=VLLM_LIKE))
    assert isinstance(decision, Unplaced)
    assert decision.explain.message == ("0/12 fit: 8 VRAM (need 24 GiB, best free 22.2 on gpu-7), 3 not ready, 1 arch")
    assert headline(decision.explain) == Reason.NEED_GT_FREE


def test_no_worker_at_all() -> None:
    decision = one(Fleet(), ask("q06b"))
    assert isinstance(decision, Unplaced)
    assert (decision.explain.workers, decision.explain.rejected) == (0, {})
    assert headline(decision.explain) == Reason.NOT_READY


def test_a_worker_whose_host_was_not_reported_is_not_ready() -> None:
    fleet = Fleet().add("w", [W16])
    del fleet.devices["host-w"]
    assert refused(fleet, ask("q06b")) == {"not_ready": 1}


def test_an_explanation_follows_what_was_placed_since_an_equal_one() -> None:
    inventory = Fleet().add("a", [W16]).inventory()
    sizes = {"large": 12 * GIB, "small": 3 * GIB}
    order = ["large", "large", "small", "large"]
    batch = [Ask(str(n), "d", (Layout(1, sizes[size], False),)) for n, size in enumerate(order)]
    nearest = [one.explain.nearest for one in place(inventory, batch) if isinstance(one, Unplaced)]
    free = [None if one is None else one.free_gib for one in nearest]
    assert free == [round((W16 - claimed * GIB) / GIB, 2) for claimed in (12, 15)]


@pytest.mark.parametrize(
    ("fleet", "held"),
    [
        (Fleet().add("a", [A80]).claim("a/0"), True),
        (Fleet().add("a", [A80] * 2).claim("a/0").claim("a/1"), True),
        (Fleet().add("a", [A80] * 2).claim("a/0").claim("a/1", GIB), False),  # its sharing ends, and then it is free
        (Fleet().add("a", [A80]).claim("a/0", GIB), False),
    ],
)
def test_workers_whose_gpus_single_instances_hold_are_shown_as_held(fleet: Fleet, held: bool) -> None:
    decision = one(fleet, Ask("i", "d", (Layout(1, 0, True),)))
    assert isinstance(decision, Unplaced)
    assert ("1 held" in decision.explain.message) == held


def test_cores_that_are_claimed_twice_leave_none_free() -> None:
    fleet = Fleet().add("a", [A80], cpus=64).set("host-a", claimed_cpu_milli=65_000)
    decision = one(fleet, Ask("i", "d", (Layout(0, 0, False),), cpu_milli=1_500))
    assert isinstance(decision, Unplaced)
    assert decision.explain.nearest is not None
    assert decision.explain.nearest.message.endswith("need 1.5 cores, best free 0 on a")
