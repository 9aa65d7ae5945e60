"""Missing replicas are created."""

import pytest

from controller.decide.instances.replicas import add_creates, classify
from controller.domain.effects import DeploymentEffects
from support.builders.facts import deployment, host, instance, process, spec
from support.decisions import effects_of, phases_of, running


def test_missing_replicas_are_created() -> None:
    assert len(effects_of(spec=spec(replicas=3)).creates) == 3
    assert len(effects_of(running("a"), spec=spec(replicas=3)).creates) == 2
    assert effects_of(running("a")).creates == []


def test_an_instance_created_during_an_analysis_starts_as_analyzing() -> None:
    assert [c.analyzing for c in effects_of(need=None).creates] == [True]
    assert [c.analyzing for c in effects_of().creates] == [False]


def test_an_instance_of_another_revision_than_the_analyzed_one_is_pending() -> None:
    facts = deployment()
    effects = DeploymentEffects(analyse=2)
    for revision in (1, 2):
        add_creates(facts, classify(facts), (), revision, 1, effects)
    assert [(create.revision, create.analyzing) for create in effects.creates] == [(1, False), (2, True)]


def test_a_preempted_task_is_requeued_with_its_queue_time() -> None:
    task = running("a", preempted_for="b", age_s=900)
    effects = effects_of(task, spec=spec(restart="never"))
    assert [s.reason for s in effects.stops] == ["preempted"]
    assert [(c.replaces, c.born) for c in effects.creates] == [("a", task.created_at)]


def test_a_task_that_never_restarts_gets_no_substitute() -> None:
    one = instance("a", "unreachable", processes=(process("running"),))
    assert not effects_of(one, hosts=(host(phase="lost"),), spec=spec(restart="never")).creates
    dead = effects_of(one, hosts=(host(phase="lost", confirmed_dead=True),), spec=spec(restart="never"))
    assert phases_of(dead) == ["failed"]
    assert dead.releases


@pytest.mark.parametrize("home", [host(phase="unreachable"), host(phase="unreachable", reason="breaker_open")])
def test_there_is_no_substitute_while_the_worker_may_return(home) -> None:
    effects = effects_of(instance("a", "unreachable", processes=(process("running"),)), hosts=(home,))
    assert not effects.creates
    assert not effects.releases


def test_a_lost_instance_that_its_rollout_stops_has_no_successor() -> None:
    old = instance("a", "unreachable", processes=(process("running"),))
    new = instance("b", "unreachable", revision=2, processes=(process("running"),))
    effects = effects_of(old, new, spec=spec(replicas=2), revision=2, hosts=(host(phase="lost", reason="silent"),))
    assert "a" in {change.instance for change in effects.phase_changes}
    assert [(create.revision, create.replaces) for create in effects.creates] == [(2, "b")]


def test_of_two_revisions_that_a_step_creates_the_first_has_the_successor() -> None:
    lost = instance("a", "unreachable", processes=(process("running"),))
    facts = deployment(lost, revision=2, spec=spec(replicas=3), hosts=(host(phase="lost", reason="silent"),))
    effects = DeploymentEffects()
    for revision in (2, 1):
        add_creates(facts, classify(facts), (), revision, 1, effects)
    assert [(create.revision, create.replaces) for create in effects.creates] == [(2, "a"), (1, None)]
