"""Advice: each advised change makes the ask fit, and the inventory is the same afterwards."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from controller.domain.admission import Holder
from controller.domain.model_facts import ModelFacts
from controller.domain.placement import Ask, Layout, Need, Placed, PlannedClaim, Share, Unplaced
from controller.engines.registry import engine_for
from controller.scheduling.estimate import asks_for
from controller.scheduling.explain.advice import AdviceRequest, advise
from controller.scheduling.search.place import place
from schemas.manifest.deployment import DeploymentSpec
from support.builders.engine_specs import LLAMA
from support.builders.engine_specs import need as need_for
from support.builders.engine_specs import spec as spec_for
from support.builders.fleet import GIB, Fleet


def spec_of(**fields: Any) -> DeploymentSpec:
    return DeploymentSpec.model_validate({"engine": "simulated", **fields})


def advice(fleet: Fleet, need: Need, *, holders: Sequence[Holder] = (), **fields: Any) -> list[str]:
    """The advice for an ask that does not fit. The same ask gets the same decision before and after."""
    inventory, spec = fleet.inventory(), spec_of(**fields)
    ask = asks_for(spec, need, engine_for(spec), instance="i", deployment_uid="d")
    (decision,) = place(inventory, [ask])
    assert isinstance(decision, Unplaced)
    lines = advise(inventory, AdviceRequest(spec, need, engine_for(spec), "d", decision.explain, holders))
    assert place(inventory, [ask]) == [decision]
    return lines


def test_less_gpu_memory() -> None:
    fleet = Fleet().add("a", [40 * GIB]).add("b", [24 * GIB - 100]).claim("a/0", 30 * GIB)
    assert advice(fleet, Need(38 * GIB)) == ["fits with gpu_memory <= 23.9GiB on 1 GPU"]
    spec = spec_of(resources={"gpu_memory": "23.9GiB"})
    ask = asks_for(spec, Need(38 * GIB), engine_for(spec), instance="i", deployment_uid="d")
    assert isinstance(place(fleet.inventory(), [ask])[0], Placed)


@pytest.mark.parametrize(
    ("gib", "sequences", "said"),
    [
        (19, 16, []),
        (20, 16, ["fits with gpu_memory: 20GiB on 1 GPU"]),
        (23, 16, ["fits with gpu_memory <= 23GiB (at least 20GiB) on 1 GPU"]),
        (49, None, []),
    ],
)
def test_never_less_memory_than_all_but_the_cache_and_one_sequence(
    gib: int, sequences: int | None, said: list[str]
) -> None:
    parts = {"weights": 16 * GIB, "activations": 2 * GIB, "cache": 32 * GIB}
    need = Need(None, shares=(Share(1, 1, 1, 50 * GIB, parts),), sequences=sequences)
    assert advice(Fleet().add("a", [gib * GIB]), need) == said


def test_of_a_need_of_all_gpus_each_takes_its_part_at_least() -> None:
    need = Need(70 * GIB, heads=32, vocab=152064, parts={"weights": 30 * GIB, "cache": 40 * GIB}, sequences=4)
    said = advice(Fleet().add("a", [24 * GIB] * 2), need, resources={"gpus": 2}, args={"heads": 32})
    assert said == ["fits with gpu_memory <= 24GiB (at least 20GiB) on 2 GPUs"]


def test_the_free_memory_of_gpus_that_are_not_to_be_had_hides_no_advice() -> None:
    fleet = Fleet().add("a", [24 * GIB - 100]).add("b", [80 * GIB], os="other")
    assert "fits with gpu_memory <= 23.8GiB on 1 GPU" in advice(fleet, Need(38 * GIB), placement={"workers": ["a"]})


def test_a_fleet_without_workers_gets_no_advice() -> None:
    assert advice(Fleet(), Need(GIB), resources={"host_memory": "1GiB", "cpus": 1}) == []


@pytest.mark.parametrize("gib", [16, 21, 30])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama-cpp", "transformers"])
def test_both_ends_of_an_advised_range_fit(engine: str, gib: int) -> None:
    """Also with the need that the engine measures for the stated memory."""
    facts = replace(LLAMA, weight_bytes=12 * 2**30, dtypes={"BF16": 12 * 2**30}, parameters=6 * 2**30)
    facts = facts if engine != "llama-cpp" else replace(facts, format="gguf")
    fleet = Fleet().add("a", [gib * GIB])
    spec, need = spec_for(engine, resources={"gpus": 1, "gpu_memory": "60GiB"}), need_for(
        engine, facts, resources={"gpus": 1, "gpu_memory": "60GiB"}
    )  # fmt: skip
    inventory = fleet.inventory()
    (decision,) = place(inventory, [asks_for(spec, need, engine_for(spec), instance="i", deployment_uid="d")])
    assert isinstance(decision, Unplaced)
    request = AdviceRequest(spec, need, engine_for(spec), "d", decision.explain)
    for line in [one for one in advise(inventory, request) if "gpu_memory" in one]:
        sizes = re.findall(r"[\d.]+GiB", line)
        if "<=" in line:  # without an end below there is none
            below = float(sizes[1][:-3]) - 1 if "at least" in line else 0.1
            assert _fits(engine, facts, fleet, f"{below:g}GiB") == ("at least" not in line), line
        for size in sizes:
            assert _fits(engine, facts, fleet, size), f"{line}: {size} is refused"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_where_too_little_is_stated_the_least_that_suffices_is_advised(engine: str) -> None:
    facts = replace(LLAMA, weight_bytes=12 * 2**30, dtypes={"BF16": 12 * 2**30}, parameters=6 * 2**30)
    fields = {"resources": {"gpus": 1, "gpu_memory": "8GiB"}}
    spec, need, fleet = spec_for(engine, **fields), need_for(engine, facts, **fields), Fleet().add("a", [40 * GIB])
    inventory = fleet.inventory()
    (decision,) = place(inventory, [asks_for(spec, need, engine_for(spec), instance="i", deployment_uid="d")])
    assert isinstance(decision, Unplaced)
    lines = advise(inventory, AdviceRequest(spec, need, engine_for(spec), "d", decision.explain))
    (size,) = [found[1] for line in lines if (found := re.match(r"fits with gpu_memory: ([\d.]+)GiB", line))]
    assert _fits(engine, facts, fleet, f"{size}GiB")
    assert not _fits(engine, facts, fleet, f"{float(size) - 0.1:.1f}GiB")


def _fits(engine: str, facts: ModelFacts, fleet: Fleet, gpu_memory: str) -> bool:
    fields = {"resources": {"gpus": 1, "gpu_memory": gpu_memory}}
    spec = spec_for(engine, **fields)
    ask = asks_for(spec, need_for(engine, facts, **fields), engine_for(spec), instance="i", deployment_uid="d")
    return isinstance(place(fleet.inventory(), [ask])[0], Placed)


def measured(engine: str, **fields: Any) -> tuple[DeploymentSpec, Need]:
    """A model of 40 GiB of weights, as that engine measures it."""
    facts = replace(LLAMA, weight_bytes=40 * 2**30, dtypes={"BF16": 40 * 2**30}, parameters=20 * 2**30)
    facts = facts if engine != "llama-cpp" else replace(facts, format="gguf")
    return spec_for(engine, **fields), need_for(engine, facts, **fields)


@pytest.mark.parametrize(
    ("engine", "fields", "said"),
    [
        ("vllm", {}, "fits with max_workers: 2 on 4 GPUs of 2 workers"),
        ("vllm", {"parallel": {"tp": 3}, "resources": {"max_workers": 2}}, "fits with tp: 2, pp: 2, dp: 1"),
        ("sglang", {"resources": {"gpus": 2}}, None),
        ("llama-cpp", {}, None),
        ("transformers", {}, None),
    ],
)
def test_advice_follows_from_the_measured_shares(engine: str, fields: dict[str, Any], said: str | None) -> None:
    fleet = Fleet().add("a", [20 * GIB] * 2).add("b", [20 * GIB] * 2)
    spec, need = measured(engine, **fields)
    inventory, facts = fleet.inventory(), engine_for(spec)
    (decision,) = place(inventory, [asks_for(spec, need, facts, instance="i", deployment_uid="d")])
    assert isinstance(decision, Unplaced)
    lines = advise(inventory, AdviceRequest(spec, need, facts, "d", decision.explain))
    assert [line for line in lines if "max_workers" in line or "tp:" in line] == [said] * (said is not None)


def test_more_workers() -> None:
    fleet = Fleet().add("a", [24 * GIB]).add("b", [24 * GIB])
    need = Need(40 * GIB, heads=32, vocab=152064, parts={"weights": 40 * GIB})
    assert advice(fleet, need, args={"heads": 32}) == ["fits with max_workers: 2 on 2 GPUs of 2 workers"]


def test_degrees_that_divide() -> None:
    fleet = Fleet().add("a", [24 * GIB] * 4)
    said = advice(fleet, Need(40 * GIB, heads=28), parallel={"tp": 3}, args={"heads": 28})
    assert said[0] == "fits with tp: 2, pp: 1, dp: 1"


def test_a_cordoned_worker_and_one_that_is_not_ready() -> None:
    need, resources = Need(20 * GIB, parts={"weights": 20 * GIB}), {"resources": {"gpus": 1}}
    fleet = Fleet().add("a", [24 * GIB], schedulable=False).add("b", [8 * GIB])
    assert advice(fleet, need, **resources) == ["fits after: gpuward uncordon a"]
    fleet = Fleet().add("a", [24 * GIB], ready=False).add("b", [8 * GIB])
    assert advice(fleet, need, **resources) == ["fits once a is ready"]


def test_cordoned_gpus() -> None:
    need, resources = Need(20 * GIB, parts={"weights": 20 * GIB}), {"resources": {"gpus": 1}}
    fleet = Fleet().add("a", [24 * GIB, 24 * GIB]).add("b", [8 * GIB])
    fleet.set("a/0", cordoned=True).set("a/1", cordoned=True)
    assert advice(fleet, need, **resources) == ["fits after: gpuward uncordon a --gpu a/0"]
    both = {"resources": {"gpus": 2, "gpu_memory": "20GiB"}}
    assert advice(fleet, Need(None), **both) == [
        "fits after: gpuward uncordon a --gpu a/0; gpuward uncordon a --gpu a/1"
    ]


def test_each_worker_of_a_gang_is_named() -> None:
    need, resources = Need(None), {"resources": {"gpus": 2, "gpu_memory": "20GiB", "max_workers": 2}}
    fleet = Fleet().add("a", [24 * GIB], schedulable=False).add("b", [24 * GIB], schedulable=False)
    assert advice(fleet, need, **resources) == ["fits after: gpuward uncordon a; gpuward uncordon b"]
    fleet = Fleet().add("a", [24 * GIB], ready=False).add("b", [24 * GIB], ready=False)
    assert advice(fleet, need, **resources) == ["fits once a, b are ready"]


def test_a_free_choice() -> None:
    fleet = Fleet().add("a", [8 * GIB]).add("b", [24 * GIB], labels={"zone": "b"})
    need = Need(20 * GIB, parts={"weights": 20 * GIB})
    said = advice(fleet, need, placement={"workers": ["a"], "labels": {"zone": "a"}})
    assert said == ["fits on b without placement.workers, placement.labels"]


def test_host_memory() -> None:
    fleet = Fleet().add("a", [24 * GIB], host_memory=64 * GIB)
    assert advice(fleet, Need(GIB), resources={"host_memory": "100GiB"}) == ["fits with host_memory <= 63.9GiB"]


def test_fewer_cpus() -> None:
    fleet = Fleet().add("a", [24 * GIB], cpus=32).add("b", [24 * GIB], cpus=64, schedulable=False)
    said = advice(fleet, Need(GIB), resources={"cpus": 48})
    assert said == ["fits after: gpuward uncordon b"]
    assert advice(Fleet().add("a", [24 * GIB], cpus=32), Need(GIB), resources={"cpus": 48}) == ["fits with cpus <= 32"]


def test_never_less_host_memory_than_the_engine_needs() -> None:
    fleet = Fleet().add("a", [24 * GIB], host_memory=4 * GIB)
    assert advice(fleet, Need(GIB, host_memory_mib=6 * GIB)) == []
    assert advice(fleet, Need(GIB, host_memory_mib=2 * GIB), resources={"host_memory": "6GiB"}) == [
        "fits with host_memory <= 3.9GiB (at least 2.1GiB)"
    ]
    scarce = Fleet().add("a", [24 * GIB], host_memory=2202)
    said = advice(scarce, Need(GIB, host_memory_mib=2 * GIB), resources={"host_memory": "6GiB"})
    assert said == ["fits with host_memory: 2.1GiB"]


def test_a_host_reserved_beyond_its_memory_has_none_and_gets_no_advice() -> None:
    fleet = Fleet().add("a", [24 * GIB], host_memory=64 * GIB).set("host-a", reserved_mib=100 * GIB)
    assert advice(fleet, Need(GIB), resources={"host_memory": "1GiB"}) == []
    wanted = Ask("i", "d", (Layout(0, 0, exclusive=False),), host_memory_mib=GIB)
    (decision,) = place(fleet.inventory(), [wanted])
    assert isinstance(decision, Unplaced)
    assert decision.explain.nearest is not None
    assert decision.explain.nearest.free_gib == 0


@pytest.mark.parametrize("fill", [lambda f: f.claim("a/0"), lambda f: f.set("a/0", healthy=False)])
def test_no_advice_where_nothing_helps(fill: Callable[[Fleet], Fleet]) -> None:
    assert advice(fill(Fleet().add("a", [24 * GIB])), Need(GIB), resources={"gpus": 1}) == []


def test_which_instance_has_to_end() -> None:
    fleet = Fleet().add("a", [24 * GIB] * 2).claim("a/0", 20 * GIB).claim("a/1", 20 * GIB)
    held = {"one": [("a/0", 20)]}
    holders = [
        Holder(name, 100, 0.0, frozenset({"id-a"}), tuple(PlannedClaim(g, n * GIB, 0, False, 0) for g, n in claims))
        for name, claims in held.items()
    ]
    said = advice(fleet, Need(20 * GIB, parts={"weights": 20 * GIB}), holders=holders, resources={"gpus": 1})
    assert said == ["fits once one has ended on a"]


def test_a_free_choice_of_the_kind_of_gpu_and_of_all_that_is_named() -> None:
    fleet = Fleet().add("a", [8 * GIB]).add("b", [24 * GIB])
    need = Need(20 * GIB, parts={"weights": 20 * GIB})
    kinds = {"resources": {"gpus": 1, "gpu_models": ["B200"], "min_gpu_memory": "100GiB"}}
    assert advice(fleet, need, **kinds) == ["fits on b without resources.gpu_models, resources.min_gpu_memory"]
    said = advice(fleet, need, resources={"gpus": 1}, placement={"gpus": ["a:0"], "all_of": True})
    assert said == ["fits on b without placement.gpus, placement.all_of"]
    both = advice(fleet, need, resources={"gpus": 1, "gpu_models": ["B200"]}, placement={"workers": ["a"]})
    assert both == ["fits on b without placement.workers, resources.gpu_models"]


def test_no_line_is_empty_where_a_named_worker_is_cordoned() -> None:
    """The instance is placed elsewhere than on the cordoned worker, which must be ready all the same."""
    fleet = Fleet().add("a", [24 * GIB]).add("b", [24 * GIB], schedulable=False)
    wanted = {"resources": {"gpus": 2, "gpu_memory": "4GiB", "max_workers": 2}}
    said = advice(fleet, Need(None), **wanted, placement={"gpus": ["a:0", "b:0"]})
    assert "fits after: gpuward uncordon b" in said
    assert not [line for line in said if line.rstrip().endswith(":")]


def test_degrees_that_were_found_without_a_split_are_not_advised() -> None:
    fleet = Fleet().add("a", [24 * GIB] * 2)
    assert advice(fleet, Need(40 * GIB), parallel={"tp": 3}) == []


def test_of_many_workers_four_are_named() -> None:
    fleet = Fleet()
    for name in "abcdef":
        fleet.add(name, [24 * GIB])
    for count, said in ((4, "a, b, c, d"), (6, "a, b, c, d and 2 more")):
        wanted = {"gpus": count, "gpu_memory": "4GiB", "max_workers": count}
        lines = advice(fleet, Need(None), resources=wanted, placement={"labels": {"zone": "a"}})
        assert lines == [f"fits on {said} without placement.labels"]


def test_all_instances_that_have_to_end_are_named_and_no_others() -> None:
    fleet = Fleet().add("a", [24 * GIB] * 2).add("b", [24 * GIB])
    fleet.claim("a/0", 20 * GIB).claim("a/1", 20 * GIB).claim("b/0", 20 * GIB)
    holders = [
        Holder(name, 100, 0.0, frozenset({f"id-{gpu[0]}"}), (PlannedClaim(gpu, 20 * GIB, 0, False, 0),))
        for name, gpu in (("one", "a/0"), ("two", "a/1"), ("other", "b/0"))
    ]
    wanted = {"gpus": 2, "gpu_memory": "20GiB"}
    assert advice(fleet, Need(None), holders=holders, resources=wanted)[-1] == "fits once one, two have ended on a"


@pytest.mark.parametrize(
    ("free", "said"), [(0, []), (1, ["fits with cpus <= 0.001"]), (7_500, ["fits with cpus <= 7.5"])]
)
def test_as_many_cpus_are_advised_as_the_freest_worker_has(free: int, said: list[str]) -> None:
    fleet = Fleet().add("a", [24 * GIB], cpus=8).add("b", [24 * GIB], cpus=8)
    fleet.set("host-a", claimed_cpu_milli=8_000).set("host-b", claimed_cpu_milli=8_000 - free)
    assert advice(fleet, Need(GIB), resources={"cpus": 8}) == said
