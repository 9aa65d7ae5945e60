"""From resources and a need to layouts."""

from typing import Any

import pytest

from gpuward.controller.domain.placement import Ask, Layout, Need
from gpuward.controller.engines.registry import engine_for
from gpuward.controller.scheduling.estimate import asks_for, input_hash
from gpuward.schemas.manifest import DeploymentSpec


def ask(need: Need, engine: str = "simulated", **fields: Any) -> Ask:
    base: dict[str, Any] = {
        "simulated": {"engine": "simulated"},
        "custom": {"command": ["x"]},
        "transformers": {"model": "path:/m"},
    }[engine]
    spec = DeploymentSpec.model_validate(base | fields)
    return asks_for(spec, need, engine_for(spec), instance="i", deployment_uid="d")


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


def test_named_gpus_set_the_count() -> None:
    assert ask(known(100), placement={"gpus": ["a:0", "a:1"]}).layouts == (Layout(2, 50, False),)
    assert ask(Need(None), "custom", placement={"gpus": ["a:0"]}).layouts == (Layout(1, 0, True),)


def test_stated_degrees_set_the_count() -> None:
    assert ask(known(100), parallel={"tp": 2, "pp": 2}).layouts == (Layout(4, 25, False),)


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
    assert hashed(model="path:/m", engine="transformers") == same
    others = [
        hashed(model="path:/n"),
        hashed(model="hf:m/n"),
        hashed(model="path:/m", args={"dtype": "float32"}),
        hashed(model="path:/m", resources={"gpu_memory": "1GiB"}),
        hashed(engine="simulated", model="path:/m"),
    ]
    assert len({same, *others}) == 6
