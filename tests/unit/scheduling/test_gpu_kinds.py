"""Kinds of GPUs in manifests, as cases: models, least memory, compute capability, labels of the agent, MIG mode.

The hosts are those of the placement cases: GPUs of one make and several models, as drivers name them.
"""

from typing import Any

import pytest

from controller.domain.placement import Ask, Decision, Need, Placed, Unplaced
from controller.engines.registry import engine_for
from controller.scheduling.estimate import asks_for
from controller.scheduling.explain.unplaced import headline
from controller.scheduling.search.place import place
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.resources import capability_bounds, matches_model
from support.builders.fleet import GIB, Fleet, gpus_of

H100, A100, L40S, T4 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S", "Tesla T4"
FACTS = {H100: (81_559, (9, 0)), A100: (81_920, (8, 0)), L40S: (46_068, (8, 9)), T4: (15_360, (7, 5))}


def fleet() -> Fleet:
    made = Fleet()
    for name, models in {"h": [H100] * 2, "a": [A100] * 2, "l": [L40S] * 4, "mixed": [T4, L40S]}.items():
        made.add(name, [FACTS[model][0] for model in models], labels={"gpuward/gpu-count": str(len(models))})
        for index, model in enumerate(models):
            made.set(f"{name}/{index}", model=model, compute_capability=FACTS[model][1])
    return made


def ask(need: int = 4 * GIB, **fields: Any) -> Ask:
    spec = DeploymentSpec.model_validate({"engine": "simulated", **fields})
    return asks_for(spec, Need(need), engine_for(spec), instance="i", deployment_uid="d")


def one(wanted: Ask, on: Fleet | None = None) -> Decision:
    return place((on or fleet()).inventory(), [wanted])[0]


def placed(wanted: Ask, on: Fleet | None = None) -> list[str]:
    decision = one(wanted, on)
    assert isinstance(decision, Placed), decision
    return gpus_of(decision)


def refused(wanted: Ask, on: Fleet | None = None) -> tuple[str, dict[str, int], str]:
    decision = one(wanted, on)
    assert isinstance(decision, Unplaced), decision
    found = decision.explain
    return headline(found), found.rejected, "" if found.nearest is None else found.nearest.message


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        (["h100"], "h/0"),
        (["A100 sxm4 80gb"], "a/0"),
        (["A100-SXM4-80GB", "H100"], "h/0"),  # the smaller of the two
        (["t4"], "mixed/0"),
        (["Tesla-T4"], "mixed/0"),
        (["L40S"], "mixed/1"),
    ],
)
def test_g01_a_part_of_the_model_s_name(models: list[str], expected: str) -> None:
    assert placed(ask(resources={"gpus": 1, "gpu_models": models})) == [expected]


def test_g01_no_gpu_of_that_model() -> None:
    wanted = ask(resources={"gpus": 1, "gpu_models": ["A10", "L4"]})  # neither A100 nor L40S
    assert refused(wanted) == ("gpu_model", {"gpu_model": 4}, "need 1 GPU of model A10 or L4, best 0 on a")
    two = ask(resources={"gpus": 2, "gpu_models": ["T4"]})
    assert refused(two)[1] == {"gpu_model": 3, "count_mismatch": 1}


def test_g02_least_memory_is_that_of_the_whole_gpu() -> None:
    claimed = fleet().claim("l/0", 40 * GIB)
    assert placed(ask(resources={"gpus": 1, "min_gpu_memory": "20GiB"}), claimed) == ["l/0"]
    assert placed(ask(resources={"gpus": 1, "min_gpu_memory": "48GiB"})) == ["h/0"]
    assert placed(ask(resources={"gpus": 1, "min_gpu_memory": "80GB"})) == ["h/0"]  # as its name says, in GB
    reason, rejected, message = refused(ask(resources={"gpus": 1, "min_gpu_memory": "100GiB"}))
    assert (reason, rejected) == ("need_gt_capacity", {"need_gt_capacity": 4})
    assert message == "need 100.00 GiB, best free 80.00 on a"


@pytest.mark.parametrize(
    ("required", "expected"),
    [(">=9.0", "h/0"), ("==8.0", "a/0"), (">8,<9.0", "mixed/1"), ("<8.0", "mixed/0"), ("<=7.5", "mixed/0")],
)
def test_g03_compute_capability(required: str, expected: str) -> None:
    assert placed(ask(resources={"gpus": 1, "compute_capability": required})) == [expected]


def test_g03_no_gpu_of_that_capability_and_unknown_is_none() -> None:
    wanted = ask(resources={"gpus": 1, "compute_capability": ">=9.5,<12"})
    assert refused(wanted) == (
        "compute_capability", {"compute_capability": 4}, "need 1 GPU of compute capability >=9.5, <12.0, best 0 on a",
    )  # fmt: skip
    unknown = Fleet().add("w", [16 * GIB]).set("w/0", compute_capability=None)
    assert refused(ask(resources={"gpus": 1, "compute_capability": "<99"}), unknown)[0] == "compute_capability"


def test_g04_labels_of_the_agent_select() -> None:
    wanted = ask(resources={"gpus": 1}, placement={"labels": {"gpuward/gpu-count": 4}})
    assert placed(wanted) == ["l/0"]
    wanted = ask(resources={"gpus": 1}, placement={"labels": {"gpuward/gpu-model": H100.replace(" ", "-")}})
    assert refused(wanted)[1] == {"label_mismatch": 4}


def _sliced() -> Fleet:
    """A GPU in MIG mode with two slices, and two whole GPUs as large as a slice."""
    fleet = Fleet().add("w", [80 * GIB, 20 * GIB, 20 * GIB, 20 * GIB, 20 * GIB])
    fleet.set("w/0", mig_mode=True)
    for slice_ in ("w/1", "w/2"):
        fleet.set(slice_, model="H MIG 2g.20gb", parent="w/0", index=0)
    return fleet


def test_g06_a_slice_is_one_gpu_of_an_instance() -> None:
    assert placed(ask(resources={"gpus": 1, "gpu_models": ["MIG"]}), _sliced()) == ["w/1"]
    assert placed(ask(resources={"gpus": 1}, placement={"gpus": ["w/2"]}), _sliced()) == ["w/2"]
    whole = ask(resources={"gpus": 1, "exclusive": True}, placement={"gpus": ["w/2"]})
    assert placed(whole, _sliced()) == ["w/2"]
    assert refused(whole, _sliced().claim("w/2", GIB))[0] == "exclusive_conflict"


def test_g06_slices_serve_with_no_other_gpu() -> None:
    assert placed(ask(resources={"gpus": 2}), _sliced()) == ["w/3", "w/4"]
    two = {"gpus": 2, "gpu_models": ["MIG"]}
    assert refused(ask(resources=two), _sliced())[1] == {"mixed_accelerators": 1}
    for named in (["w/1", "w/2"], ["w/1", "w/3"]):
        assert isinstance(one(ask(resources={"gpus": 2}, placement={"gpus": named}), _sliced()), Unplaced)
    halves = _sliced().add("v", [20 * GIB]).set("v/0", model="H MIG 2g.20gb", parent="GPU-v")
    gang = ask(resources={"gpus": 2, "max_workers": 2, "gpu_models": ["MIG"]})
    assert isinstance(one(gang, halves), Unplaced)


def test_g05_mig_mode_is_told_and_never_used() -> None:
    on = Fleet().add("w", [80 * GIB] * 2).set("w/0", mig_mode=True).set("w/1", mig_mode=True)
    wanted = ask(resources={"gpus": 1})
    assert refused(wanted, on) == ("mig_mode", {"mig_mode": 1}, "need 1 GPU not in MIG mode, best 0 on w")
    for placement in ({"gpus": ["w:0"]}, {"workers": ["w"]}, {"gpus": ["w:0"], "all_of": True}):
        assert refused(ask(resources={"gpus": 1}, placement=placement), on)[0] == "mig_mode"
    assert placed(wanted, on.set("w/1", mig_mode=False)) == ["w/1"]


def test_the_checks_are_the_same_for_named_gpus() -> None:
    both = {"gpu_models": ["H100"], "gpus": 1}
    assert refused(ask(resources=both, placement={"gpus": ["a:0", "l:1"]}))[1] == {"gpu_model": 2, "not_selected": 2}
    assert placed(ask(resources=both, placement={"gpus": ["a:0", "h:1"]})) == ["h/1"]


@pytest.mark.parametrize(
    ("name", "part", "found"),
    [
        (A100, "A10", False),
        (A100, "a100_sxm4", True),
        (L40S, "L4", False),
        ("NVIDIA GH200 480GB", "H200", False),
        ("NVIDIA GeForce RTX 4090", "rtx-4090", True),
        ("AMD Instinct MI300X", "MI300", True),
        (H100, ".*", False),
    ],
)
def test_a_part_begins_with_a_word_and_takes_numbers_whole(name: str, part: str, found: bool) -> None:
    assert matches_model(name, [part]) is found


@pytest.mark.parametrize("text", ["8.0", "", ">=", ">=8.0 <9", "~=8.0", ">=9.0,<8.0", ">8.0,<8.1", ">=8.0,", "=>8"])
def test_invalid_requirements_of_compute_capability(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a valid requirement|contradicts itself"):
        capability_bounds(text)
