"""One instance's steps: given a phase and what is known, which phase next, and what goes with it."""

from dataclasses import replace
from datetime import timedelta

import pytest

from controller.decide.instances.decide import decide
from controller.domain.effects import DeploymentEffects
from controller.domain.restarts import RestartSettings
from support.facts import NOW, deployment, host, instance, process, spec, start

SETTINGS = RestartSettings()


def plan_for(one, **fields) -> DeploymentEffects:
    return decide(deployment(one, **fields), SETTINGS)


def moved(plan: DeploymentEffects) -> list[str]:
    return [move.to.value for move in plan.phase_changes]


@pytest.mark.parametrize(
    ("phase", "state", "expected"),
    [
        ("scheduled", "starting", ["starting"]),
        ("scheduled", "running", ["starting"]),  # one edge at a time
        ("starting", "starting", []),
        ("starting", "running", ["running"]),
        ("starting", "unhealthy", ["running"]),
        ("running", "running", []),
        ("running", "unhealthy", ["unhealthy"]),
        ("running", "starting", []),  # a late report never goes back
        ("unhealthy", "running", ["running"]),
        ("unhealthy", "unhealthy", []),
        ("running", "stopping", []),
    ],
)
def test_follows_what_the_agent_reports(phase, state, expected) -> None:
    assert moved(plan_for(instance("a", phase, processes=(process(state),)))) == expected


@pytest.mark.parametrize(
    ("restart", "reason", "code", "expected", "failures", "released"),
    [
        ("always", "exit", 0, "backoff", 1, False),
        ("always", "exit", 1, "backoff", 1, False),
        ("always", "liveness", None, "backoff", 1, False),
        ("always", "agent_stopped", 0, "backoff", None, False),
        ("always", "gone", None, "backoff", None, False),
        ("on_failure", "exit", 0, "succeeded", None, True),
        ("on_failure", "exit", 3, "backoff", 1, False),
        ("never", "exit", 0, "succeeded", None, True),
        ("never", "exit", 3, "failed", 1, True),
        ("never", "gone", None, "failed", 1, True),  # an unknown end is no success
        ("never", "agent_stopped", 0, "failed", 1, True),
    ],
)
def test_after_an_exit(restart, reason, code, expected, failures, released) -> None:
    plan = plan_for(instance("a", "running", processes=(process("exited", reason, code),)), spec=spec(restart=restart))
    assert moved(plan) == [expected]
    assert plan.phase_changes[0].failures == failures
    assert bool(plan.releases) == released


@pytest.mark.parametrize(("failures", "wait_s"), [(0, 10), (1, 20), (2, 40), (4, 160), (5, 300), (20, 300)])
def test_backoff_doubles_up_to_five_minutes(failures, wait_s) -> None:
    plan = plan_for(instance("a", "running", failures=failures, processes=(process("exited", "exit", 1),)))
    assert plan.phase_changes[0].not_before == NOW + timedelta(seconds=wait_s)
    assert plan.requeue_after_s == wait_s


def test_on_failure_gives_up_after_its_retries() -> None:
    tired = instance("a", "running", failures=6, processes=(process("exited", "exit", 1),))
    assert moved(plan_for(tired, spec=spec(restart="on_failure"))) == ["failed"]
    assert moved(plan_for(tired, spec=spec(restart="always"))) == ["backoff"]


@pytest.mark.parametrize(
    ("failures", "home", "restarts", "expected"),
    [
        (1, host(), 1, []),
        (2, host(), 1, []),
        (3, host(), 0, ["pending"]),  # the third failure there: elsewhere
        (4, host(), 1, []),
        (0, host(draining=True), 0, []),  # drained: let go of, not restarted
        (0, host(phase="joining"), 0, ["pending"]),
    ],
)
def test_end_of_backoff(failures, home, restarts, expected) -> None:
    one = instance(
        "a",
        "backoff",
        failures=failures,
        not_before=NOW - timedelta(seconds=1),
        processes=(process("exited", "exit", 1),),
    )
    plan = plan_for(one, hosts=(home,))
    assert len(plan.restarts) == restarts
    assert moved(plan) == expected
    assert bool(plan.releases) == (not restarts)


def test_backoff_waits_its_time() -> None:
    one = instance("a", "backoff", not_before=NOW + timedelta(seconds=7), processes=(process("exited", "exit", 1),))
    plan = plan_for(one)
    assert (moved(plan), plan.restarts, plan.requeue_after_s) == ([], [], 7)


def test_backoff_leaves_a_sick_gpu() -> None:
    one = instance("a", "backoff", not_before=NOW, processes=(process("exited", "exit", 1),))
    sick = replace(one.claims[0], healthy=False)
    one = instance("a", "backoff", not_before=NOW, processes=one.processes, claims=(sick, one.claims[1]))
    assert moved(plan_for(one)) == ["pending"]


def test_a_refused_start_goes_back_and_waits() -> None:
    plan = plan_for(instance("a", "scheduled", commands=(start("refused", code="claim_conflict"),)))
    assert moved(plan) == ["pending"]
    assert plan.releases
    assert plan.phase_changes[0].reason == "claim_conflict"
    assert plan.phase_changes[0].not_before == NOW + timedelta(seconds=10)


@pytest.mark.parametrize("phase", ["scheduled", "starting", "running", "unhealthy"])
@pytest.mark.parametrize("silence", ["unreachable", "lost"])
def test_a_silent_worker_makes_it_unreachable_and_keeps_its_claims(phase, silence) -> None:
    plan = plan_for(instance("a", phase, processes=(process("running"),)), hosts=(host(phase=silence),))
    assert moved(plan) == ["unreachable"]
    assert not plan.releases


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
def test_back_to_what_the_returned_agent_reports(processes, commands, expected) -> None:
    assert moved(plan_for(instance("a", "unreachable", processes=processes, commands=commands))) == [expected]


def test_a_lost_worker_gets_a_substitute_and_the_old_one_stays_fenced() -> None:
    gone = instance("a", "unreachable", processes=(process("running"),))
    lost = host(phase="lost")
    plan = plan_for(gone, hosts=(lost,))
    assert [c.replaces for c in plan.creates] == ["a"]
    assert not plan.releases
    placed = instance("b", "scheduled", replaces="a", claims=())
    placed = instance("b", "starting", replaces="a")
    elsewhere = tuple(c.__class__(c.device, "w2", *(getattr(c, f) for f in c.__slots__[2:])) for c in placed.claims)
    placed = instance("b", "starting", replaces="a", claims=elsewhere)
    plan = decide(deployment(gone, placed, hosts=(lost, host("w2"))), SETTINGS)
    assert moved(plan) == ["replaced"]
    assert not plan.creates
    assert not plan.releases


@pytest.mark.parametrize("home", [host(phase="unreachable"), host(phase="unreachable", reason="breaker_open")])
def test_no_substitute_while_the_worker_may_come_back(home) -> None:
    plan = plan_for(instance("a", "unreachable", processes=(process("running"),)), hosts=(home,))
    assert not plan.creates
    assert not plan.releases


def test_a_task_that_never_restarts_gets_no_substitute() -> None:
    one = instance("a", "unreachable", processes=(process("running"),))
    assert not plan_for(one, hosts=(host(phase="lost"),), spec=spec(restart="never")).creates
    dead = plan_for(one, hosts=(host(phase="lost", confirmed_dead=True),), spec=spec(restart="never"))
    assert moved(dead) == ["failed"]
    assert dead.releases


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
def test_claims_of_a_silent_host_go_on_proof_only(home, released) -> None:
    plan = plan_for(instance("a", "replaced", processes=(process("running"),)), hosts=(home,), need=None)
    assert bool(plan.releases) == released
    assert bool(plan.removals) == released


def test_the_fence_is_waited_for() -> None:
    home = host(phase="lost", fence_until=NOW + timedelta(seconds=9))
    assert plan_for(instance("a", "unreachable", processes=(process("running"),)), hosts=(home,)).requeue_after_s == 9


def test_running_long_forgets_failures() -> None:
    fresh = instance("a", "running", age_s=299, failures=2, processes=(process("running"),))
    assert plan_for(fresh).forget_failures == []
    assert plan_for(fresh).requeue_after_s == 1
    stable = instance("a", "running", age_s=300, failures=2, processes=(process("running"),))
    assert plan_for(stable).forget_failures == ["a"]


@pytest.mark.parametrize("phase", ["running", "unhealthy", "unreachable"])
@pytest.mark.parametrize("silence", ["unreachable", "lost"])
@pytest.mark.parametrize(("code", "expected"), [(0, "succeeded"), (3, "failed")])
def test_a_task_that_has_ended_is_over_though_its_worker_fell_silent_since(phase, silence, code, expected) -> None:
    """Were it removed with its worker, another would be made and the work done twice."""
    one = instance("a", phase, processes=(process("exited", "exit", code),))
    plan = plan_for(one, hosts=(host(phase=silence),), spec=spec(restart="never"))
    assert moved(plan) == [expected]
    assert (plan.creates, plan.removals) == ([], [])


@pytest.mark.parametrize(
    ("phase", "expected"), [("scheduled", "pending"), ("starting", "backoff"), ("unreachable", "scheduled")]
)
def test_a_refused_start_waits_for_its_turn_though_its_worker_fell_silent_since(phase, expected) -> None:
    """An agent that ends refuses starts and is gone the next moment: that is no death of its host."""
    one = instance("a", phase, commands=(start("refused", code="shutting_down"),))
    plan = plan_for(one, hosts=(host(phase="unreachable"),))
    assert moved(plan) == [expected]
    assert (plan.creates, plan.removals) == ([], [])


def test_a_refused_start_on_a_lost_worker_makes_way_for_a_substitute() -> None:
    one = instance("a", "unreachable", commands=(start("refused", code="shutting_down"),))
    plan = plan_for(one, hosts=(host(phase="lost"),))
    assert [create.replaces for create in plan.creates] == ["a"]
    assert [removal.instance for removal in plan.removals] == ["a"]


@pytest.mark.parametrize(("sent", "moves", "removed"), [(True, ["failed"], []), (False, [], ["a"])])
def test_a_task_on_a_dead_host_has_failed_unless_it_never_began(sent, moves, removed) -> None:
    one = instance("a", "unreachable", commands=(start("open", sent=sent),))
    plan = plan_for(one, hosts=(host(phase="lost", confirmed_dead=True),), spec=spec(restart="never"))
    assert (moved(plan), [r.instance for r in plan.removals]) == (moves, removed)
    assert len(plan.withdrawals) == (not sent)
