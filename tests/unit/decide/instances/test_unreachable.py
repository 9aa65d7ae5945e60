"""Instances on silent, returned and lost workers."""

from dataclasses import replace
from datetime import timedelta

import pytest

from controller.decide.instances.decide import decide
from support.builders.facts import NOW, deployment, host, instance, process, spec, start
from support.decisions import SETTINGS, effects_of, phases_of


@pytest.mark.parametrize("phase", ["scheduled", "starting", "running", "unhealthy"])
@pytest.mark.parametrize("silence", ["unreachable", "lost"])
def test_a_silent_worker_makes_it_unreachable_and_keeps_its_claims(phase, silence) -> None:
    effects = effects_of(instance("a", phase, processes=(process("running"),)), hosts=(host(phase=silence),))
    assert phases_of(effects) == ["unreachable"]
    assert not effects.releases


@pytest.mark.parametrize(
    ("processes", "commands", "expected"),
    [
        ((process("running"),), (start(),), "running"),
        ((process("starting"),), (start(),), "starting"),
        ((process("unhealthy"),), (start(),), "unhealthy"),
        ((process("exited", "exit", 1),), (start(),), "backoff"),
        ((), (start("open", sent=False),), "scheduled"),
    ],
)
def test_it_returns_to_what_the_returned_agent_reports(processes, commands, expected) -> None:
    assert phases_of(effects_of(instance("a", "unreachable", processes=processes, commands=commands))) == [expected]


def test_an_instance_on_a_lost_worker_is_substituted_and_keeps_its_claims() -> None:
    gone = instance("a", "unreachable", processes=(process("running"),))
    lost = host(phase="lost")
    effects = effects_of(gone, hosts=(lost,))
    assert [c.replaces for c in effects.creates] == ["a"]
    assert not effects.releases
    placed = instance("b", "scheduled", replaces="a", claims=())
    placed = instance("b", "starting", replaces="a")
    elsewhere = tuple(c.__class__(c.device, "w2", *(getattr(c, f) for f in c.__slots__[2:])) for c in placed.claims)
    placed = instance("b", "starting", replaces="a", claims=elsewhere)
    effects = decide(deployment(gone, placed, hosts=(lost, host("w2"))), SETTINGS)
    assert phases_of(effects) == ["replaced"]
    assert not effects.creates
    assert not effects.releases


@pytest.mark.parametrize(
    ("home", "released"),
    [
        (host(phase="lost"), False),
        (host(phase="lost", fence_until=NOW + timedelta(seconds=9)), False),
        (host(phase="lost", fence_until=NOW), True),
        (host(phase="unreachable", confirmed_dead=True), True),
        (host(phase="unreachable", deleted=True, confirmed_dead=True), True),
        (host(phase="unreachable", fence_until=NOW), False),  # the fence counts for the lost only
    ],
)
def test_claims_on_a_silent_worker_are_released_on_proof_only(home, released) -> None:
    effects = effects_of(instance("a", "replaced", processes=(process("running"),)), hosts=(home,), need=None)
    assert bool(effects.releases) == released
    assert bool(effects.removals) == released


def test_the_next_step_comes_when_the_fence_expires() -> None:
    home = host(phase="lost", fence_until=NOW + timedelta(seconds=9))
    assert effects_of(instance("a", "unreachable", processes=(process("running"),)), hosts=(home,)).requeue_after_s == 9


@pytest.mark.parametrize("phase", ["running", "unhealthy", "unreachable"])
@pytest.mark.parametrize("silence", ["unreachable", "lost"])
@pytest.mark.parametrize(("code", "expected"), [(0, "succeeded"), (3, "failed")])
def test_an_ended_task_is_finished_though_its_worker_fell_silent(phase, silence, code, expected) -> None:
    """Were it removed with its worker, another would be made and the work done twice."""
    one = instance("a", phase, processes=(process("exited", "exit", code),))
    effects = effects_of(one, hosts=(host(phase=silence),), spec=spec(restart="never"))
    assert phases_of(effects) == [expected]
    assert (effects.creates, effects.removals) == ([], [])


@pytest.mark.parametrize(
    ("phase", "expected"), [("scheduled", "pending"), ("starting", "backoff"), ("unreachable", "scheduled")]
)
def test_a_refused_start_is_retried_though_its_worker_fell_silent(phase, expected) -> None:
    """An agent that ends refuses starts and is gone the next moment: its host need not be dead."""
    one = instance("a", phase, commands=(start("refused", code="shutting_down"),))
    effects = effects_of(one, hosts=(host(phase="unreachable"),))
    assert phases_of(effects) == [expected]
    assert (effects.creates, effects.removals) == ([], [])


def test_a_refused_start_on_a_lost_worker_is_substituted() -> None:
    one = instance("a", "unreachable", commands=(start("refused", code="shutting_down"),))
    effects = effects_of(one, hosts=(host(phase="lost"),))
    assert [create.replaces for create in effects.creates] == ["a"]
    assert [removal.instance for removal in effects.removals] == ["a"]


@pytest.mark.parametrize(("sent", "moves", "removed"), [(True, ["failed"], []), (False, [], ["a"])])
def test_a_task_on_a_dead_worker_failed_unless_it_never_began(sent, moves, removed) -> None:
    one = instance("a", "unreachable", commands=(start("open", sent=sent),))
    effects = effects_of(one, hosts=(host(phase="lost", confirmed_dead=True),), spec=spec(restart="never"))
    assert (phases_of(effects), [r.instance for r in effects.removals]) == (moves, removed)
    assert len(effects.withdrawals) == (not sent)


@pytest.mark.parametrize("restart", ["never", "on_failure"])
def test_a_task_on_a_lost_worker_gets_no_copy_while_it_may_run(restart) -> None:
    one = instance("a", "unreachable", processes=(process("running"),))
    effects = effects_of(one, hosts=(host(phase="lost"),), spec=spec(restart=restart))
    assert (effects.creates, effects.removals, effects.releases) == ([], [], [])
    (told,) = effects.progress
    assert told.reason == "task_may_run"
    assert "gpuward delete worker w1 --confirm-dead" in told.message
    assert ("starts elsewhere" in told.message) == (restart == "on_failure")
    again = replace(one, reason=told.reason, message=told.message)
    assert not effects_of(again, hosts=(host(phase="lost"),), spec=spec(restart=restart)).progress


@pytest.mark.parametrize(
    "proof",
    [
        host(phase="lost", confirmed_dead=True),
        host(phase="unreachable", deleted=True, confirmed_dead=True),
        host(phase="lost", fence_until=NOW),
    ],
)
@pytest.mark.parametrize(("restart", "moves", "again"), [("never", ["failed"], False), ("on_failure", [], True)])
def test_proof_ends_a_task_or_starts_it_again(proof, restart, moves, again) -> None:
    one = instance("a", "unreachable", processes=(process("running"),))
    effects = effects_of(one, hosts=(proof,), spec=spec(restart=restart))
    assert phases_of(effects) == moves
    assert [removal.instance for removal in effects.removals] == (["a"] if again else [])
    if again:
        assert effects.requeue_after_s == pytest.approx(0.01), "the next step creates another one"
        created = decide(deployment(spec=spec(restart=restart)), SETTINGS).creates
        assert len(created) == 1


@pytest.mark.parametrize("restart", ["never", "on_failure"])
@pytest.mark.parametrize("home", [host(phase="lost"), host(phase="lost", confirmed_dead=True)])
def test_a_task_whose_start_was_refused_is_placed_again(home, restart) -> None:
    one = instance("a", "unreachable", commands=(start("refused", code="shutting_down"),))
    effects = effects_of(one, hosts=(home,), spec=spec(restart=restart))
    assert [removal.instance for removal in effects.removals] == ["a"]


def test_a_task_goes_on_where_its_worker_returns() -> None:
    one = instance("a", "unreachable", processes=(process("running"),))
    assert phases_of(effects_of(one, hosts=(host(),), spec=spec(restart="on_failure"))) == ["running"]


@pytest.mark.parametrize(
    ("state", "requeue_after_s", "message"), [("refused", 0.01, ""), ("accepted", None, "its worker is back")]
)
def test_without_a_process_it_waits_for_its_start(state: str, requeue_after_s: float | None, message: str) -> None:
    effects = effects_of(instance("a", "unreachable", commands=(start(state),)), phase="pending")
    assert [(change.to.value, change.message) for change in effects.phase_changes] == [("scheduled", message)]
    assert effects.requeue_after_s == (requeue_after_s or 0.01)


def test_of_a_server_on_a_lost_worker_no_remedy_is_told_since_its_substitute_is_due() -> None:
    one = instance("a", "unreachable", processes=(process("running"),))
    effects = effects_of(one, hosts=(host(phase="lost"),), spec=spec(restart="always"))
    assert ([create.replaces for create in effects.creates], effects.progress) == (["a"], [])
    silent = effects_of(one, hosts=(host(phase="unreachable"),), spec=spec(restart="never"))
    assert (silent.creates, silent.progress) == ([], []), "it is not lost yet"
