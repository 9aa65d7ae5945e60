"""Instances that must leave their worker although they are wanted."""

import pytest

from controller.domain.phases import InstancePhase
from support.builders.facts import host, instance, process, spec
from support.decisions import effects_of, running


def test_drained_instances_stop_and_are_replaced() -> None:
    effects = effects_of(running("a"), hosts=(host(draining=True),))
    assert [s.reason for s in effects.stops] == ["drained"]
    assert len(effects.creates) == 1


@pytest.mark.parametrize("evicted", [{"preempted_for": "b"}, {}], ids=["preempted", "drained"])
def test_a_finished_task_is_not_evicted_and_not_repeated(evicted: dict[str, str]) -> None:
    done = instance("a", "running", processes=(process("exited", "exit", 0),), **evicted)
    fields = {"spec": spec(restart="never"), "hosts": (host(draining=not evicted),)}
    effects = effects_of(done, **fields)
    assert ([m.to for m in effects.phase_changes], effects.creates) == ([InstancePhase.SUCCEEDED], [])
    after = effects_of(instance("a", "succeeded", **evicted), **fields)
    assert (after.stops, after.removals, after.creates) == ([], [], [])
