"""Estimate: from resources and a need to layouts."""

from typing import Any

import pytest

from controller.domain.placement import Ask, Layout, Need, Share
from controller.engines.registry import engine_for
from controller.engines.simulated import SimulatedEngine
from controller.scheduling.estimate import asks_for, input_hash
from rig.simulated_args import RigEngine
from schemas.manifest.deployment import DeploymentSpec
from schemas.placement_reasons import Reason


def ask(need: Need, engine: str = "simulated", **fields: Any) -> Ask:
    base: dict[str, Any] = {
        "simulated": {"engine": "simulated"},
        "custom": {"command": ["x"]},
        "transformers": {"model": "path:/m", "engine": "transformers"},
    }[engine]
    spec = DeploymentSpec.model_validate(base | fields)
    chosen = RigEngine() if spec.engine == RigEngine.name else engine_for(spec)
    return asks_for(spec, need, chosen, instance="i", deployment_uid="d")


def known(memory_mib: int) -> Need:
    return Need(memory_mib)


@pytest.mark.parametrize(
    ("engine", "need", "resources", "layouts"),
    [
        ("simulated", known(100), {}, [(1, 100, False), (2, 50, False), (4, 25, False), (8, 13, False)]),
        ("simulated", known(100), {"exclusive": True}, [(1, 100, True), (2, 50, True), (4, 25, True), (8, 13, True)]),
        ("simulated", known(100), {"gpus": 3}, [(3, 34, False)]),
        ("simulated", known(100), {"gpus": 2, "gpu_memory": "20GiB"}, [(2, 20480, False)]),
        ("simulated", known(100), {"gpu_memory": "20GiB"}, [(1, 20480, False)]),
        ("simulated", known(100), {"gpus": 2, "gpu_memory": "20GiB", "exclusive": True}, [(2, 20480, True)]),
        ("simulated", known(100), {"gpus": 2, "gpu_memory": "all"}, [(2, 50, True)]),
        ("simulated", known(100), {"gpus": 0}, [(0, 0, False)]),
        ("simulated", Need(None), {}, [(1, 0, True)]),
        ("simulated", Need(None), {"gpus": 2}, [(2, 0, True)]),
        ("custom", Need(None), {}, [(0, 0, False)]),
        ("custom", Need(None), {"gpus": 2}, [(2, 0, True)]),
        ("custom", Need(None), {"exclusive": True}, [(1, 0, True)]),
        ("custom", Need(None), {"gpu_memory": "all"}, [(1, 0, True)]),
        ("custom", Need(None), {"gpu_memory": "8GiB"}, [(1, 8192, False)]),
        ("transformers", known(100), {}, [(1, 100, False)]),
        ("transformers", known(100), {"gpus": 3}, [(3, 34, False)]),
    ],
)
def test_layouts(engine: str, need: Need, resources: dict[str, Any], layouts: list[tuple[int, int, bool]]) -> None:
    assert ask(need, engine, resources=resources).layouts == tuple(Layout(*layout) for layout in layouts)


def test_named_gpus_set_the_count_where_an_instance_takes_them_all() -> None:
    named = {"gpus": ["a:0", "a:1"]}
    assert ask(known(100), placement=named | {"all_of": True}).layouts == (Layout(2, 50, False),)
    assert ask(known(100), placement=named).layouts == ask(known(100)).layouts  # a pool
    assert [ask(known(100), placement=named, resources={"gpus": n}).all_gpus for n in (1, 2)] == [False, True]
    assert ask(known(100), placement=named, parallel={"tp": 2}).all_gpus
    assert ask(Need(None), "custom", placement={"gpus": ["a:0"]}).layouts == (Layout(1, 0, True),)


def test_all_named_workers_set_the_number_of_workers() -> None:
    named = {"workers": ["a", "b"], "all_of": True}
    asked = ask(known(100), resources={"max_workers": 2}, placement=named)
    assert {one.workers for one in asked.layouts} == {2}
    assert asked.all_workers
    assert {one.workers for one in ask(known(100), resources={"max_workers": 2, "gpus": 4}).layouts} == {1, 2}
    stated = ask(known(100), resources={"max_workers": 2, "gpus": 4}, placement=named)
    assert [(one.gpus, one.workers) for one in stated.layouts] == [(4, 2)]


def test_stated_degrees_set_the_count() -> None:
    assert ask(known(100), parallel={"tp": 2, "pp": 2}).layouts == (Layout(4, 25, False, tp=2, pp=2),)
    by_copies = ask(known(100), parallel={"tp": 2, "dp": 2}, resources={"max_workers": 2}).layouts
    assert by_copies == (Layout(4, 50, False, tp=2, dp=2), Layout(4, 50, False, workers=2, tp=2, dp=2))


MODEL = Need(96, heads=12, kv_heads=4, vocab=1000)


@pytest.mark.parametrize(
    ("resources", "parallel", "layouts", "tried"),
    [
        # 3 heads for each of 4 GPUs; 3 and 6 divide the 12 heads but neither the 4 nor the 1000
        ({}, {}, [(1, 96, 1, 1, 1), (2, 48, 1, 2, 1), (4, 24, 1, 4, 1)],
         {3: "heads_indivisible", 5: "heads_indivisible", 6: "heads_indivisible", 7: "heads_indivisible",
          8: "heads_indivisible", 16: "heads_indivisible"}),
        ({"gpus": 3}, {}, [], {3: "heads_indivisible"}),
        ({"gpus": 4, "max_workers": 2}, {}, [(4, 24, 1, 4, 1), (4, 24, 2, 2, 2)], {}),
        # tensor parallelism over two workers only where the user says so
        ({"max_workers": 2}, {"tp": 4}, [(4, 24, 1, 4, 1), (4, 24, 2, 4, 1)], {}),
        ({"max_workers": 3}, {"tp": 4}, [(4, 24, 1, 4, 1), (4, 24, 2, 4, 1)], {}),
        ({}, {"pp": 3}, [(3, 32, 1, 1, 3)], {}),
    ],
)  # fmt: skip
def test_what_a_model_can_be_split_into(
    resources: dict[str, Any], parallel: dict[str, Any], layouts: list[tuple[int, ...]], tried: dict[int, str]
) -> None:
    asked = ask(MODEL, args={"heads": 12}, resources=resources, parallel=parallel)
    assert [(one.gpus, one.memory_mib, one.workers, one.tp, one.pp) for one in asked.layouts] == layouts
    assert {layout.tp: str(reason) for layout, reason in asked.tried} == tried
    assert all(layout.memory_mib == -(-96 // layout.gpus) for layout, _ in asked.tried)
    assert asked.refused == tuple(dict.fromkeys(tried.values()))


def test_gangs_come_after_single_workers_and_small_ones_first() -> None:
    layouts = ask(Need(96, heads=64), args={"heads": 64}, resources={"max_workers": 12}).layouts
    workers = [layout.workers for layout in layouts]
    assert workers == sorted(workers)
    assert sorted(set(workers)) == [1, 2, 3, 4, 5, 6, 7, 8, 12]
    assert all(layout.gpus % layout.workers == 0 and layout.tp * layout.workers == layout.gpus for layout in layouts)
    big = {w for w in range(65) if w in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)}
    assert {layout.workers for layout in ask(Need(96), resources={"max_workers": 64}).layouts} == big


def test_gpus_named_by_hand_may_be_uneven() -> None:
    named = {"gpus": ["a:0", "a:1", "b:0", "c:0"]}
    asked = ask(Need(96, heads=12), parallel={"pp": 4}, resources={"max_workers": 3}, placement=named)
    assert [(one.gpus, one.workers, one.pp) for one in asked.layouts] == [(4, 1, 4), (4, 2, 4), (4, 3, 4)]
    asked = ask(Need(96, heads=12), resources={"max_workers": 3}, placement=named | {"all_of": True})
    assert [(one.workers, one.tp, one.pp) for one in asked.layouts] == [(1, 4, 1), (2, 2, 2), (3, 1, 4)]


def test_only_measured_splits_are_tried_where_there_are_shares() -> None:
    need = Need(None, heads=8, shares=(Share(1, 1, 1, 50), Share(4, 1, 1, 20)))
    assert [(one.gpus, one.memory_mib, one.exclusive) for one in ask(need).layouts] == [(1, 50, False), (4, 20, False)]
    assert [one.exclusive for one in ask(need, resources={"gpu_memory": "all"}).layouts] == [True, True]


def test_all_splits_are_tried_for_many_requests_before_any_for_few() -> None:
    need = Need(None, shares=(Share(1, 1, 1, 50), Share(2, 1, 1, 30), Share(1, 1, 1, 20), Share(2, 1, 1, 15)))
    assert [(one.gpus, one.memory_mib) for one in ask(need).layouts] == [(1, 50), (2, 30), (1, 20), (2, 15)]


def test_each_measured_split_with_the_stated_memory_where_that_suffices() -> None:
    """Of several measurements of a split the least counts. A split of heads that is impossible keeps that reason."""
    shares = (
        Share(1, 1, 1, 50, least_mib=40_000), Share(1, 1, 1, 45, least_mib=30_000),
        Share(2, 1, 1, 30, least_mib=20_480), Share(4, 1, 1, 20, least_mib=12_000),
        Share(1, 4, 1, 20, least_mib=9_000), Share(8, 1, 1, 9, least_mib=21_000),
    )  # fmt: skip
    asked = ask(Need(None, shares=shares, heads=4), resources={"gpu_memory": "20GiB"})
    assert [(one.gpus, one.tp, one.pp, one.memory_mib) for one in asked.layouts] == [(2, 2, 1, 20480), (4, 4, 1, 20480)]
    assert {(one.gpus, one.memory_mib): reason for one, reason in asked.tried} == {
        (1, 30_000): Reason.NEED_GT_STATED, (8, 21_000): Reason.HEADS_INDIVISIBLE,
    }  # fmt: skip
    layers = ask(Need(None, shares=(Share(1, 2, 1, 30, least_mib=8_000),)), resources={"gpu_memory": "20GiB"})
    assert [(one.gpus, one.pp, one.memory_mib) for one in layers.layouts] == [(2, 2, 20480)]


def test_a_refused_need_has_no_layout() -> None:
    asked = ask(Need(10, refused=(Reason.ENGINE_UNSUPPORTED,)))
    assert (asked.layouts, asked.refused) == ((), (Reason.ENGINE_UNSUPPORTED,))


def test_the_weights_may_demand_more_of_a_gpu_than_the_engine() -> None:
    assert ask(Need(10, compute_capability=(8, 9))).compatibility.min_compute_capability == (8, 9)
    asked = ask(Need(10, compute_capability=(6, 0)), "transformers")
    assert asked.compatibility.min_compute_capability == (7, 0)


def test_the_next_best_engine_follows_where_the_best_fits_nowhere() -> None:
    class Choice(SimulatedEngine):
        def chosen(self, name: str) -> Any:
            return (
                engine_for(DeploymentSpec(engine="transformers", model="path:/m")) if name == "transformers" else self
            )

    need = Need(10, by_engine=(("simulated", Need(10)), ("transformers", Need(30))))
    spec = DeploymentSpec(model="path:/m")
    asked = asks_for(spec, need, Choice(), instance="i", deployment_uid="d", avoid_workers=frozenset({"w"}))
    assert (asked.engine, asked.instance, asked.layouts[0].memory_mib) == ("simulated", "i", 10)
    second = asked.otherwise
    assert second is not None
    assert (second.engine, second.instance, second.layouts[0].memory_mib) == ("transformers", "i", 30)
    assert (second.avoid_workers, second.otherwise) == (frozenset({"w"}), None)
    again = asked.for_instance("j")
    assert again.otherwise is not None
    assert (again.instance, again.otherwise.instance, again.avoid_workers) == ("j", "j", frozenset())
    assert again.for_instance("i", frozenset({"w"})) == asked


def test_the_rest_is_passed_on() -> None:
    asked = ask(
        Need(10, host_memory_mib=77), resources={"cpus": 1.5},
        placement={"strategy": "spread", "labels": {"a": "b"}, "workers": ["w"]},
    )  # fmt: skip
    assert (asked.host_memory_mib, asked.cpu_milli, asked.strategy) == (77, 1500, "spread")
    assert (asked.labels, asked.workers) == ({"a": "b"}, ("w",))
    assert ask(Need(10, host_memory_mib=77), resources={"host_memory": "1GiB"}).host_memory_mib == 1024


def test_the_input_hash_follows_what_the_analysis_reads() -> None:
    def hashed(**fields: Any) -> str:
        spec = DeploymentSpec.model_validate(fields)
        return input_hash(spec, engine_for(spec))

    same = hashed(model="path:/m")
    assert hashed(model="path:/m", replicas=7, placement={"strategy": "spread"}, env={"A": "b"}) == same
    others = [
        hashed(model="path:/n"),
        hashed(model="hf:m/n"),
        hashed(model="path:/m", args={"dtype": "float32"}),
        hashed(model="path:/m", resources={"gpu_memory": "1GiB"}),
        hashed(model="path:/m", resources={"gpus": 2}),
        hashed(model="path:/m", resources={"max_workers": 2}),
        hashed(model="path:/m", parallel={"tp": 2}),
        hashed(model="path:/m", placement={"gpus": ["a:0", "a:1"], "all_of": True}),
        hashed(engine="simulated", model="path:/m"),
        hashed(engine="vllm", model="path:/m"),
    ]
    assert len({same, *others}) == 11


@pytest.mark.parametrize(
    ("spec", "stored"),
    [
        (
            {"engine": "vllm", "model": "hf:org/name@main", "args": {"max-model-len": 8192}},
            "2ae7fb403717c55d4f154ce43d1008b9636a75f585d61e4866c0a62661d1a776",
        ),
        (
            {"engine": "auto", "model": "path:/models/m"},
            "36432b30674272bd5b0b2df838f3d02df56409cbc2aa59e5637adbc206b593b9",
        ),
        (
            {"engine": "llama-cpp", "model": "gguf:/m.gguf"},
            "18299e900e99a03012e8e6aad14e451fa2849391a286fffd690524f2c198ef61",
        ),
        (
            {"engine": "simulated", "args": {"analysis_seconds": 1}},
            "e0edb800c01ff97f36d7a6e6e04d334c489f6f8905b7d2d60b8da2db70b03567",
        ),
        ({"engine": "custom", "command": ["x"]}, "d2843494e12a0adf3b740cf057cfc87494cd0bd862e9d9b69988ff9057d77366"),
    ],
)
def test_input_hashes_equal_those_that_earlier_versions_stored(spec: dict[str, Any], stored: str) -> None:
    read = DeploymentSpec.model_validate(spec)
    assert input_hash(read, engine_for(read)) == stored
