"""A llama-server that uses no GPU: where it is placed, by choice and by hand, and how an old one is started."""

from dataclasses import replace
from typing import Any

import pytest

from controller.decide.start_command import start_payload
from controller.domain.placement import Placed, PlannedClaim, Unplaced
from controller.engines.registry import engine_for
from controller.scheduling.search.place import place
from schemas.engine_builds import LLAMA_CPP_ON_CPU, LLAMA_CPP_WITHOUT_CACHE_RAM
from support.builders.engine_specs import QUANTISED, asks, spec
from support.builders.fleet import GIB, Fleet


def fleet(**builds: tuple[str, ...]) -> Fleet:
    made = Fleet()
    for name, also in builds.items():
        made.add(name, [80 * GIB])
        made.workers[name] = replace(made.workers[name], engines=frozenset({"llama-cpp", *also}))
    return made


@pytest.mark.parametrize("fields", [{}, {"placement": {"workers": ["cpu"]}}, {"placement": {"gpus": ["cpu/0"]}}])
@pytest.mark.parametrize("engine", ["llama-cpp", "auto"])
def test_no_gpu_is_claimed_for_a_build_that_uses_none(engine: str, fields: dict[str, Any]) -> None:
    (wanted,) = asks(engine, QUANTISED, model="gguf:/m.gguf", **fields)
    decision = place(fleet(cpu=(LLAMA_CPP_ON_CPU,)).inventory(), [wanted])[0]
    assert isinstance(decision, Unplaced)
    assert decision.explain.rejected == {"engine_unsupported": 1}
    assert isinstance(place(fleet(cpu=()).inventory(), [wanted])[0], Placed)


def test_another_worker_is_taken_and_models_without_gpus_go_there() -> None:
    both = fleet(cpu=(LLAMA_CPP_ON_CPU,), gpu=(LLAMA_CPP_WITHOUT_CACHE_RAM,))
    (wanted,) = asks("llama-cpp", QUANTISED)
    decision = place(both.inventory(), [wanted])[0]
    assert isinstance(decision, Placed)
    assert decision.worker_id == "id-gpu"
    (on_host,) = asks("llama-cpp", QUANTISED, args={"n-gpu-layers": 0}, placement={"workers": ["cpu"]})
    assert isinstance(place(both.inventory(), [on_host])[0], Placed)


@pytest.mark.parametrize(
    ("builds", "args", "flagged"),
    [
        (("llama-cpp",), {}, True),
        ((), {}, True),
        (("llama-cpp", LLAMA_CPP_WITHOUT_CACHE_RAM), {}, False),
        (("llama-cpp", LLAMA_CPP_WITHOUT_CACHE_RAM), {"cache-ram": 64}, True),  # it says so itself
    ],
)
def test_an_old_build_is_started_without_the_flag_that_it_refuses(
    builds: tuple[str, ...], args: dict[str, Any], flagged: bool
) -> None:
    claim = PlannedClaim("GPU-1", 8 * GIB, 0, exclusive=False, position=0)
    wanted = spec("llama-cpp", args=args)
    order = start_payload(wanted, deployment="d", deployment_uid="u", gpus=[claim], builds=builds)
    assert ("--cache-ram" in order["argv"]) == flagged


def test_a_container_brings_a_build_of_its_own() -> None:
    wanted = spec("llama-cpp", runtime="docker")
    compatibility = engine_for(wanted).compatibility(wanted)
    assert compatibility.without_gpu
    assert not compatibility.in_container().without_gpu
