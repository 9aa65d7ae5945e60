"""What becomes of an instance whose GPU is gone, or cannot be read."""

from dataclasses import replace
from typing import Any

import pytest

from controller.domain.instances import InstanceState
from support.builders.facts import host, instance, process, spec
from support.decisions import effects_of, phases_of

GONE = "gpu_lost: GPU is lost"


def on_gpu(phase: str, gone: str = GONE, *, healthy: bool = False, state: str = "running") -> InstanceState:
    made = instance("a", phase, processes=(process(state),))
    gpu, rest = made.claims
    return replace(made, claims=(replace(gpu, gone=gone, healthy=healthy), rest))


def effects(made: InstanceState, *, on: Any = None, **fields: Any) -> Any:
    return effects_of(made, hosts=(on or host(),), spec=spec(**fields))


def test_a_running_instance_is_unhealthy_first_and_then_replaced() -> None:
    first = effects(on_gpu("running"))
    assert phases_of(first) == ["unhealthy"]
    assert (first.phase_changes[0].reason, GONE in first.phase_changes[0].message) == ("gpu_lost", True)
    second = effects(on_gpu("unhealthy"))
    assert phases_of(second) == ["stopping"]
    assert second.phase_changes[0].stop_reason == "gpu_lost"
    assert (len(second.stops), len(second.creates)) == (1, 1)


@pytest.mark.parametrize("phase", ["scheduled", "starting"])
def test_one_that_does_not_run_yet_stops_at_once(phase: str) -> None:
    assert phases_of(effects(on_gpu(phase, state="starting"))) == ["stopping"]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"restart": "never"}, id="a task never runs twice"),
        pytest.param({"placement": {"gpus": ["GPU-a"]}}, id="no other GPU is named"),
    ],
)
def test_without_another_place_it_stays_and_says_why(fields: dict[str, Any]) -> None:
    assert phases_of(effects(on_gpu("running"), **fields)) == ["unhealthy"]
    stays = effects(on_gpu("unhealthy"), **fields)
    assert (phases_of(stays), stays.stops, stays.creates) == ([], [], [])
    assert phases_of(effects(on_gpu("unhealthy", "", healthy=True), **fields)) == ["running"], "it is back"


def test_it_moves_to_another_gpu_that_its_spec_names() -> None:
    made = effects(on_gpu("unhealthy"), placement={"gpus": ["GPU-a", "GPU-b", "GPU-c"]})
    assert phases_of(made) == ["stopping"]


@pytest.mark.parametrize("phase", ["running", "starting"])
def test_nothing_happens_on_a_gpu_that_is_unknown_or_merely_unhealthy(phase: str) -> None:
    made = effects(on_gpu(phase, "", state=phase))
    assert (phases_of(made), made.stops, made.creates) == ([], [], [])


def test_a_silent_worker_says_nothing_of_its_gpus() -> None:
    made = effects(on_gpu("unhealthy"), on=host(phase="unreachable"))
    assert phases_of(made) == ["unreachable"]
    assert made.stops == []
