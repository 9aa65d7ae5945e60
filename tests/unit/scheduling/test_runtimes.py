"""Containers go only where a Docker engine runs them, with GPUs where they claim some: by every way of selection."""

from dataclasses import replace
from typing import Any

import pytest

from controller.domain.placement import Ask, ContainerRuntime, Need, Unplaced
from controller.engines.registry import engine_for
from controller.scheduling.estimate import asks_for
from controller.scheduling.explain.unplaced import headline
from schemas.manifest.deployment import DeploymentSpec
from schemas.placement_reasons import Reason
from support.builders.asks import one, placed, refused
from support.builders.fleet import GIB, Fleet

WHOLE = ContainerRuntime(usable=True, gpus=True)
NO_TOOLKIT = ContainerRuntime(usable=True, gpus=False, reason="no NVIDIA container toolkit on this host")
AWAY = ContainerRuntime(usable=False, gpus=False, reason="Docker does not answer")
SELECTIONS: list[dict[str, Any]] = [
    {}, {"workers": ["w"]}, {"gpus": ["w:0"]}, {"gpus": ["w/0"]}, {"workers": ["w"], "all_of": True},
]  # fmt: skip


def fleet(*docker: ContainerRuntime | None, engines: frozenset[str] | None = None) -> Fleet:
    made = Fleet()
    for number, one_of in enumerate(docker):
        name = "w" if number == 0 else f"w{number}"
        made.add(name, [40 * GIB])
        made.workers[name] = replace(made.workers[name], containers=one_of, engines=engines)
    return made


def ask(gpus: int = 1, **fields: Any) -> Ask:
    wanted = {"runtime": "docker", "engine": "vllm", "model": "hf:org/name", "resources": {"gpus": gpus}, **fields}
    spec = DeploymentSpec.model_validate(wanted)
    return asks_for(spec, Need(GIB), engine_for(spec), instance="i", deployment_uid="d")


def command(gpus: int = 0, **fields: Any) -> Ask:
    return ask(gpus, engine="custom", model=None, command=["x"], image="own/one", **fields)


@pytest.mark.parametrize("placement", SELECTIONS)
@pytest.mark.parametrize(
    ("docker", "words"),
    [
        (None, "no Docker engine is known on w"),
        (AWAY, "Docker does not answer on w"),
        (replace(AWAY, gpus=True), "Docker does not answer on w"),  # as it was when it answered last
        (NO_TOOLKIT, "no NVIDIA container toolkit on this host on w"),
        (ContainerRuntime(usable=True, gpus=False), "containers get no GPUs on w"),
    ],
)
def test_a_worker_that_cannot_is_refused_in_its_own_words(
    placement: dict[str, Any], docker: ContainerRuntime | None, words: str
) -> None:
    decision = one(fleet(docker), ask(placement=placement))
    assert isinstance(decision, Unplaced)
    assert decision.explain.rejected == {"runtime_unsupported": 1}
    assert headline(decision.explain) == Reason.RUNTIME_UNSUPPORTED
    assert decision.explain.nearest is not None
    assert decision.explain.nearest.message == words
    assert words in decision.explain.message


@pytest.mark.parametrize("placement", SELECTIONS)
def test_a_worker_that_can_is_used(placement: dict[str, Any]) -> None:
    assert placed(fleet(WHOLE), ask(placement=placement)) == ["w/0"]


def test_the_choice_passes_workers_that_cannot() -> None:
    assert placed(fleet(None, NO_TOOLKIT, WHOLE), ask()) == ["w2/0"]
    assert refused(fleet(None, NO_TOOLKIT, AWAY), ask()) == {"runtime_unsupported": 3}


def test_without_gpus_the_toolkit_is_not_needed() -> None:
    assert placed(fleet(NO_TOOLKIT), command()) == []
    assert refused(fleet(NO_TOOLKIT), command(1)) == {"runtime_unsupported": 1}
    assert refused(fleet(AWAY), command()) == {"runtime_unsupported": 1}


def test_processes_do_not_ask_for_docker() -> None:
    assert placed(fleet(None), ask(runtime="process")) == ["w/0"]


def test_the_image_brings_the_engine_along() -> None:
    without = frozenset({"transformers"})
    assert placed(fleet(WHOLE, engines=without), ask()) == ["w/0"]
    assert refused(fleet(WHOLE, engines=without), ask(runtime="process")) == {"engine_missing": 1}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"os": "darwin"}, "os_arch"),
        ({"arch": "riscv64"}, "os_arch"),
        ({"driver": "450.10"}, "driver_too_old"),
    ],
)
def test_the_platform_counts_as_ever(changes: dict[str, Any], reason: str) -> None:
    made = fleet(WHOLE)
    made.workers["w"] = replace(made.workers["w"], **changes)
    assert refused(made, ask()) == {reason: 1}


def test_gpus_count_as_ever() -> None:
    assert refused(fleet(WHOLE).set("w/0", compute_capability=(6, 1)), ask()) == {"compute_capability": 1}
    assert refused(fleet(WHOLE).set("w/0", vendor="amd"), command(1)) == {"engine_unsupported": 1}


def test_a_worker_that_learns_to_run_containers_is_used() -> None:
    made = fleet(None)
    inventory = made.inventory()
    assert refused(inventory, ask()) == {"runtime_unsupported": 1}
    inventory.upsert_workers([replace(made.workers["w"], containers=WHOLE)])
    assert placed(inventory, ask()) == ["w/0"]
