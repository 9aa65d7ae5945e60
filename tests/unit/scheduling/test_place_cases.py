"""The placement cases of one worker per instance, by number, and the rules around them."""

from typing import Any

import pytest

from controller.domain.holdings import InstanceLoad
from controller.domain.placement import Ask, Compatibility, Decision, Layout, Need, Placed, Unplaced
from controller.engines.registry import engine_for
from controller.scheduling.estimate import asks_for
from controller.scheduling.explain.unplaced import headline
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.place import place
from schemas.manifest.deployment import DeploymentSpec
from schemas.placement_reasons import Reason
from support.builders.fleet import GIB, Fleet, gpus_of

B = 2**20
W24A = 26015170560 // B
W16 = 17171480576 // B
A80 = 85899345920 // B
NEED = {  # bytes, rounded up to MiB as an engine does
    name: -(-size // B)
    for name, size in {
        "q06b": 3951444041, "q8b": 21805248512, "q32b": 80776579481, "bge": 1062417526, "s14g": 20186346291,
        "s20g": 27917287424, "s22": 30494267801, "s40h28": 53687091200,
    }.items()
}  # fmt: skip
VLLM_LIKE = Compatibility(
    os=frozenset({"linux"}), arch=frozenset({"x86_64", "aarch64"}), min_driver=(525,), min_compute_capability=(7, 0)
)


def spec(resources: dict[str, Any] | None = None, **fields: Any) -> DeploymentSpec:
    return DeploymentSpec.model_validate(
        {"engine": "simulated", "args": {"memory": "1GiB"}, "resources": resources or {}, **fields}
    )


def ask(model: str | Need, resources: dict[str, Any] | None = None, **fields: Any) -> Ask:
    need = model if isinstance(model, Need) else Need(NEED[model])
    wanted = spec(resources, **fields)
    return asks_for(wanted, need, engine_for(wanted), instance="i", deployment_uid="d")


def one(fleet: Fleet | Inventory, wanted: Ask) -> Decision:
    inventory = fleet.inventory() if isinstance(fleet, Fleet) else fleet
    return place(inventory, [wanted])[0]


def placed(fleet: Fleet | Inventory, wanted: Ask) -> list[str]:
    decision = one(fleet, wanted)
    assert isinstance(decision, Placed), decision
    return gpus_of(decision)


def refused(fleet: Fleet | Inventory, wanted: Ask) -> dict[str, int]:
    decision = one(fleet, wanted)
    assert isinstance(decision, Unplaced), decision
    return decision.explain.rejected


def test_c01_claims_what_is_needed_and_no_more() -> None:
    decision = one(Fleet().add("w24a", [W24A]), ask("q06b"))
    assert isinstance(decision, Placed)
    assert [(c.device, c.exclusive) for c in decision.claims] == [("w24a/0", False), ("host-w24a", False)]
    assert decision.claims[0].memory_mib == pytest.approx(4 * GIB, rel=0.1)


def test_c02_too_large_names_the_nearest_miss_in_gib() -> None:
    decision = one(Fleet().add("w24a", [W24A]), ask("q32b"))
    assert isinstance(decision, Unplaced)
    nearest = decision.explain.nearest
    assert nearest is not None
    assert (nearest.code, nearest.worker, nearest.free_gib, nearest.need_gib) == (
        "need_gt_capacity", "w24a", 24.23, 75.23,
    )  # fmt: skip
    assert decision.explain.rejected == {"need_gt_capacity": 1}
    assert decision.explain.message == "0/1 fit: 1 need_gt_capacity (need 75.23 GiB, best free 24.23 on w24a)"


def test_c05_small_model() -> None:
    assert placed(Fleet().add("w24a", [W24A]), ask("bge")) == ["w24a/0"]


def test_c06_host_memory() -> None:
    fleet = Fleet().add("w24a", [W24A], host_memory=67183366144 // B)
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


def test_where_the_model_rules_out_every_layout_smaller_workers_keep_their_own_reason() -> None:
    fleet = Fleet().add("two", [W16] * 2).add("four", [W16] * 4).add("small", [GIB] * 4)
    decision = one(fleet, ask(Need(NEED["q8b"], heads=28), {"gpus": 3}))
    assert isinstance(decision, Unplaced)
    assert decision.explain.rejected == {"heads_indivisible": 1, "count_mismatch": 1, "need_gt_capacity": 1}
    assert decision.explain.nearest is not None
    assert (decision.explain.nearest.worker, decision.explain.nearest.code) == ("four", "heads_indivisible")
    assert decision.explain.nearest.message == "such as four"


def test_c29_labels_cordon_and_readiness() -> None:
    fleet = Fleet().add("w24a", [W24A]).add("w16x2", [W16] * 2)
    assert refused(fleet, ask("q06b", placement={"labels": {"os": "Windows"}})) == {"label_mismatch": 2}
    fleet = Fleet().add("w24a", [W24A], schedulable=False).add("w16x2", [W16] * 2)
    assert placed(fleet, ask("q06b")) == ["w16x2/0"]
    fleet = Fleet().add("a80_1", [A80] * 2, ready=False).add("a80_3", [A80] * 2).add("a80_2", [A80] * 2)
    assert placed(fleet, ask("s14g")) == ["a80_2/0"]


def test_labels_select() -> None:
    fleet = Fleet().add("a", [W24A], labels={"zone": "a"}).add("b", [W24A], labels={"zone": "b", "rack": "7"})
    assert placed(fleet, ask("q06b", placement={"labels": {"zone": "b", "rack": "7"}})) == ["b/0"]
    assert refused(fleet, ask("q06b", placement={"labels": {"zone": "a", "rack": "7"}})) == {"label_mismatch": 2}


def test_c36_pack_and_spread_choose_different_gpus() -> None:
    fleet = Fleet().add("w", [W16] * 4).claim("w/1", 2 * GIB).claim("w/3", 4 * GIB)
    assert placed(fleet, ask("q06b", placement={"strategy": "pack"})) == ["w/3"]
    assert placed(fleet, ask("q06b", placement={"strategy": "spread"})) == ["w/0"]


def load(instance: str, deployment: str, worker: str, *gpus: str) -> InstanceLoad:
    return InstanceLoad(instance, deployment, (f"id-{worker}",), gpus)


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ([load("1", "d", "w16x2", "w16x2/0")], "w24a/0"),
        (
            [load("1", "d", "w16x2", "w16x2/0"), load("2", "d", "w24a", "w24a/0")]
            + [load(str(n), "other", "w16x2", "w16x2/1") for n in (3, 4)],
            "w24a/0",
        ),
        ([load("1", "x", "w24a", "w24a/0"), load("2", "x", "w24a", "w24a/0")], "w16x2/0"),
    ],
)
def test_c40_spread_over_workers(loads: list[InstanceLoad], expected: str) -> None:
    inventory = Fleet().add("w24a", [W24A]).add("w16x2", [W16] * 2).inventory()
    inventory.upsert_load(loads)
    assert placed(inventory, ask("q06b", placement={"strategy": "spread"})) == [expected]


def test_c40_spread_over_the_gpus_of_one_host() -> None:
    inventory = Fleet().add("w", [W16] * 2).inventory()
    inventory.upsert_load([load("1", "d", "w", "w/0"), load("2", "x", "w", "w/0")])
    assert placed(inventory, ask("q06b", placement={"strategy": "spread"})) == ["w/1"]
    inventory.upsert_load([load("1", "d", "w", "w/1"), load("2", "x", "w", "w/0"), load("3", "x", "w", "w/0")])
    assert placed(inventory, ask("q06b", placement={"strategy": "spread"})) == ["w/0"]


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


def test_spread_counts_its_own_instances_before_those_of_others() -> None:
    inventory = Fleet().add("a", [W16]).add("b", [W16]).inventory()
    inventory.upsert_load([load(str(n), "x", "a", "a/0") for n in range(5)])
    batch = [Ask(f"i{n}", "d", (Layout(1, GIB, False),), strategy="spread") for n in range(4)]
    assert [gpus_of(d) for d in place(inventory, batch) if isinstance(d, Placed)] == [
        ["b/0"], ["a/0"], ["b/0"], ["a/0"],
    ]  # fmt: skip


def test_spread_counts_its_own_instances_on_gpus_too() -> None:
    inventory = Fleet().add("a", [W16] * 2).inventory()
    inventory.upsert_load([load(str(n), "x", "a", "a/0") for n in range(5)])
    batch = [Ask(f"i{n}", "d", (Layout(1, GIB, False),), strategy="spread") for n in range(4)]
    assert [gpus_of(d) for d in place(inventory, batch) if isinstance(d, Placed)] == [
        ["a/1"], ["a/0"], ["a/1"], ["a/0"],
    ]  # fmt: skip


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


def test_pack_keeps_large_free_workers_whole() -> None:
    fleet = Fleet().add("a-whole", [A80] * 4).add("b-broken", [A80] * 4).claim("b-broken/0")
    assert placed(fleet, ask(Need(None), {"gpus": 2})) == ["b-broken/1", "b-broken/2"]
    assert placed(fleet, ask(Need(None), {"gpus": 4})) == [f"a-whole/{i}" for i in range(4)]


def test_pack_takes_the_smallest_gpu_that_is_large_enough() -> None:
    fleet = Fleet().add("a", [A80]).add("b", [W24A]).add("c", [W16])
    assert placed(fleet, ask("s14g", {"exclusive": True})) == ["b/0"]
    assert placed(fleet, ask("q06b")) == ["c/0"]


def test_avoided_workers_are_the_last_resort() -> None:
    fleet = Fleet().add("a", [W16]).add("b", [W16])
    avoiding = Ask("i", "d", (Layout(1, GIB, False),), avoid_workers=frozenset({"id-a"}))
    inventory = fleet.inventory()
    assert placed(inventory, avoiding) == ["b/0"]
    nowhere_else = Ask("i", "d", (Layout(1, W16 - GIB, False),), avoid_workers=frozenset({"id-a"}))
    assert placed(inventory, nowhere_else) == ["b/0"]
    assert placed(inventory, nowhere_else) == ["a/0"]


@pytest.mark.parametrize(
    ("changes", "wanted", "reason"),
    [
        ({"healthy": False}, Layout(1, GIB, False), Reason.GPU_UNHEALTHY),
        ({"mig_mode": True}, Layout(1, GIB, False), Reason.MIG_MODE),
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


def test_an_ask_without_gpus_goes_where_no_free_gpu_needs_the_host() -> None:
    fleet = Fleet().add("a", [W16], host_memory=8 * GIB).add("b", [W16], host_memory=64 * GIB).claim("b/0")
    decision = one(fleet, Ask("i", "d", (Layout(0, 0, False),), host_memory_mib=6 * GIB))
    assert isinstance(decision, Placed)
    assert decision.worker_id == "id-b"


def test_without_gpus_only_the_host_is_claimed() -> None:
    inventory = Fleet().add("a", cpus=4, host_memory=8 * GIB).add("b", cpus=4, host_memory=64 * GIB).inventory()
    wanted = Ask("i", "d", (Layout(0, 0, False),), host_memory_mib=6 * GIB, cpu_milli=1500)
    decision = one(inventory, wanted)
    assert isinstance(decision, Placed)
    assert [(c.device, c.memory_mib, c.cpu_milli, c.exclusive, c.position) for c in decision.claims] == [
        ("host-a", 6 * GIB, 1500, False, 0)
    ]
    second = one(inventory, wanted)
    assert isinstance(second, Placed)
    assert second.worker_id == "id-b"


def test_an_ask_that_claims_nothing_goes_where_the_fewest_run() -> None:
    inventory = Fleet().add("a").add("b").inventory()
    nothing = (Layout(0, 0, False),)
    decisions = place(inventory, [Ask(str(n), "d", nothing) for n in range(4)])
    assert [d.worker_id for d in decisions if isinstance(d, Placed)] == ["id-a", "id-b", "id-a", "id-b"]


def test_the_one_line_message() -> None:
    fleet = Fleet()
    for n in range(8):
        fleet.add(f"gpu-{n}", [W24A]).claim(f"gpu-{n}/0", 2 * GIB if n == 7 else 20 * GIB)
    for n in range(3):
        fleet.add(f"silent-{n}", [W24A], ready=False)
    fleet.add("mac", [W24A], os="darwin")
    decision = one(fleet, Ask("i", "d", (Layout(1, 24 * GIB, False),), compatibility=VLLM_LIKE))
    assert isinstance(decision, Unplaced)
    assert decision.explain.message == (
        "0/12 fit: 8 need_gt_free (need 24.00 GiB, best free 22.23 on gpu-7), 3 not_ready, 1 os_arch"
    )
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
