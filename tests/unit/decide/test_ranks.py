"""Instances of several ranks: claims stay until every rank has ended, and the one that ended by itself tells why."""

from dataclasses import replace

import pytest

from controller.decide.instances.decide import decide
from controller.domain.effects import DeploymentEffects
from controller.domain.instances import InstanceFacts
from controller.domain.restarts import RestartSettings
from support.facts import deployment, host, instance, process, spec, start

EXIT_1 = ("exited", "exit", 1)
EXIT_0 = ("exited", "exit", 0)
STOPPED = ("exited", "stopped", 0)
RUNNING = ("running",)


def gang(phase: str, *states, orders=None) -> InstanceFacts:
    """Rank n on worker w(n+1); `states` are its processes' ends, None where none was reported."""
    one = instance("g", phase)
    claims = [replace(c, rank=rank, worker_id=f"w{rank + 1}") for rank in range(len(states)) for c in one.claims]
    processes = [replace(process(*s), rank=n, worker_id=f"w{n + 1}") for n, s in enumerate(states) if s]
    commands = orders or [start() for _ in states]
    commands = [replace(c, id=n + 1, rank=n, worker_id=f"w{n + 1}") for n, c in enumerate(commands)]
    return replace(one, claims=tuple(claims), processes=tuple(processes), commands=tuple(commands))


def plan_for(one: InstanceFacts, **fields) -> DeploymentEffects:
    hosts = (host("w1"), host("w2"))
    return decide(deployment(one, hosts=hosts, spec=spec(**fields)), RestartSettings())


@pytest.mark.parametrize("phase", ["starting", "running", "unhealthy", "unreachable"])
@pytest.mark.parametrize(("first", "second", "stopped"), [(EXIT_1, RUNNING, 1), (RUNNING, EXIT_1, 0)])
def test_one_rank_has_ended_and_the_other_is_stopped_before_anything_goes(phase, first, second, stopped) -> None:
    plan = plan_for(gang(phase, first, second))
    assert [(s.rank, s.reason) for s in plan.stops] == [(stopped, "rank_ended")]
    assert (plan.phase_changes, plan.releases, plan.restarts, plan.removals) == ([], [], [], [])


def test_the_other_ranks_order_that_was_never_sent_is_withdrawn() -> None:
    plan = plan_for(gang("starting", EXIT_1, None, orders=[start(), start("open", sent=False)]))
    assert [w.command_id for w in plan.withdrawals] == [2]
    assert (plan.stops, plan.releases) == ([], [])


@pytest.mark.parametrize("phase", ["starting", "backoff"])
def test_an_order_for_a_dead_host_that_was_never_sent_goes_with_the_claims(phase) -> None:
    one = gang(phase, EXIT_1, None, orders=[start(), start("open", sent=False)])
    hosts = (host("w1"), host("w2", phase="lost", deleted=True, confirmed_dead=True))
    plan = decide(deployment(one, hosts=hosts, spec=spec(restart="never")), RestartSettings())
    if phase == "backoff":
        plan = decide(deployment(one, hosts=hosts), RestartSettings())
    assert [r.instance for r in plan.releases] == ["g"]
    assert [w.command_id for w in plan.withdrawals] == [2]


@pytest.mark.parametrize(
    ("states", "restart", "phase"),
    [
        ((STOPPED, EXIT_1), "always", "backoff"),
        ((STOPPED, EXIT_1), "never", "failed"),
        ((EXIT_0, EXIT_0), "never", "succeeded"),
        ((EXIT_0, EXIT_1), "never", "failed"),  # one that failed outweighs one that did not
        ((STOPPED, STOPPED), "never", "failed"),
    ],
)
def test_when_all_have_ended_the_one_that_ended_by_itself_tells(states, restart, phase) -> None:
    assert [m.to for m in plan_for(gang("running", *states), restart=restart).phase_changes] == [phase]


def test_ranks_of_a_task_finish_one_after_another() -> None:
    plan = plan_for(gang("running", EXIT_0, RUNNING), restart="never")
    assert (plan.phase_changes, plan.stops, plan.releases) == ([], [], [])


def test_a_rank_that_was_refused_takes_the_others_with_it() -> None:
    refused = start("refused", code="claim_conflict")
    first = plan_for(gang("scheduled", RUNNING, None, orders=[start(), refused]))
    assert [s.rank for s in first.stops] == [0]
    nobody = plan_for(gang("scheduled", None, None, orders=[start("withdrawn"), refused]))
    assert [m.to for m in nobody.phase_changes] == ["pending"]
    assert [r.instance for r in nobody.releases] == ["g"]


def test_several_ranks_are_placed_again_as_a_whole() -> None:
    plan = plan_for(gang("backoff", EXIT_1, STOPPED))
    assert plan.restarts == []
    assert [m.to for m in plan.phase_changes] == ["pending"]


def test_a_rank_whose_host_is_dead_takes_the_others_with_it() -> None:
    one = gang("unreachable", RUNNING, RUNNING)
    hosts = (host("w1", phase="lost", deleted=True, confirmed_dead=True), host("w2"))
    plan = decide(deployment(one, hosts=hosts), RestartSettings())
    assert [s.rank for s in plan.stops] == [1]
    assert (plan.removals, plan.releases) == ([], [])


@pytest.mark.parametrize(
    ("phase", "states", "to"),
    [
        ("scheduled", (RUNNING, None), "starting"),
        ("starting", (RUNNING, None), None),
        ("starting", (RUNNING, ("starting",)), None),
        ("starting", (None, RUNNING), None),
        ("starting", (RUNNING, RUNNING), "running"),
        ("running", (RUNNING, ("unhealthy",)), "unhealthy"),
        ("unhealthy", (RUNNING, RUNNING), "running"),
    ],
)
def test_a_gang_is_as_far_as_the_rank_that_is_least_far(phase, states, to) -> None:
    moves = [m.to.value for m in plan_for(gang(phase, *states)).phase_changes]
    assert moves == ([to] if to else [])


LOST = (host("w1"), host("w2", phase="lost"))


def plan_lost(one: InstanceFacts, *others: InstanceFacts, hosts=LOST, **fields) -> DeploymentEffects:
    facts = deployment(one, *others, hosts=hosts, spec=spec(**fields))
    return decide(facts, RestartSettings())


def test_a_gang_that_lost_a_worker_is_replaced_and_what_runs_on_the_others_is_stopped() -> None:
    plan = plan_lost(gang("unreachable", RUNNING, RUNNING))
    assert [(s.rank, s.reason) for s in plan.stops] == [(0, "rank_lost")]
    assert plan.releases == []
    assert [c.replaces for c in plan.creates] == ["g"]


@pytest.mark.parametrize("phase", ["unreachable", "replaced", "stopping"])
def test_the_ranks_that_have_ended_let_go_while_the_lost_one_is_fenced(phase) -> None:
    plan = plan_lost(gang(phase, STOPPED, RUNNING))
    assert [(r.instance, r.rank) for r in plan.releases] == [("g", 0)]
    assert plan.removals == []


def without_first(one: InstanceFacts) -> InstanceFacts:
    return replace(one, claims=tuple(c for c in one.claims if c.rank))


def test_a_gang_that_let_go_of_ranks_never_comes_back() -> None:
    """Its host is back, but the GPUs of the other may be somebody else's by now."""
    plan = plan_lost(without_first(gang("unreachable", STOPPED, RUNNING)), hosts=(host("w1"), host("w2")))
    assert [m.to.value for m in plan.phase_changes] == ["stopping"]
    assert [s.rank for s in plan.stops] == [1]


def test_a_task_that_never_restarts_is_left_alone() -> None:
    plan = plan_lost(gang("unreachable", RUNNING, RUNNING), restart="never")
    assert (plan.stops, plan.releases, plan.creates) == ([], [], [])


def test_the_substitute_of_a_gang_takes_its_place_once_it_holds_claims() -> None:
    heir = replace(instance("h", "scheduled"), replaces="g")
    plan = plan_lost(without_first(gang("unreachable", STOPPED, RUNNING)), heir)
    assert [(m.instance, m.to.value) for m in plan.phase_changes] == [("g", "replaced")]
