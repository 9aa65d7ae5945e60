"""The hash of an analysis' inputs: it changes with all that may change the need, and with nothing else."""

from typing import Any

import pytest

from controller.engines.registry import engine_for
from controller.scheduling.estimate import input_hash
from schemas.manifest.deployment import DeploymentSpec

BASE: dict[str, Any] = {"engine": "vllm", "model": "path:/models/llama", "runtime": "docker", "image": "vllm:1"}


def hashed(**changes: Any) -> str:
    spec = DeploymentSpec.model_validate(BASE | changes)
    return input_hash(spec, engine_for(spec))


@pytest.mark.parametrize(
    "change",
    [
        {"model": "path:/models/other"},
        {"args": {"max_model_len": 4096}},
        {"image": "vllm:2"},
        {"parallel": {"tp": 2}},
        {"resources": {"gpus": 2}},
        {"resources": {"gpu_memory": "8GiB"}},
        {"resources": {"max_workers": 2}},
        {"resources": {"host_memory": "8GiB"}},
        {"placement": {"gpus": ["GPU-1", "GPU-2"], "all_of": True}},
        {"engine": "sglang", "image": "vllm:1"},
    ],
    ids=str,
)
def test_an_input_of_the_need_changes_the_hash(change: dict[str, Any]) -> None:
    assert hashed(**change) != hashed()


@pytest.mark.parametrize(
    "change",
    [
        {"replicas": 3},
        {"placement": {"labels": {"zone": "a"}}},
        {"placement": {"gpus": ["GPU-1", "GPU-2"]}},  # one of them is taken
        {"resources": {"cpus": 2}},
        {"env": {"A": "b"}},
    ],
    ids=str,
)
def test_all_else_leaves_the_hash(change: dict[str, Any]) -> None:
    assert hashed(**change) == hashed()
