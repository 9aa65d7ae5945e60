"""Gangs: claims stay until every rank has ended, and the rank that ended by itself gives the reason."""

from dataclasses import replace

import pytest

from controller.decide.instances.decide import decide
from controller.domain.effects import DeploymentEffects
from controller.domain.instances import InstanceFacts
from controller.domain.restart_delays import RestartSettings
from support.builders.facts import deployment, host, instance, process, spec, start

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


def effects_of(one: InstanceFacts, **fields) -> DeploymentEffects:
    hosts = (host("w1"), host("w2"))
    return decide(deployment(one, hosts=hosts, spec=spec(**fields)), RestartSettings())


@pytest.mark.parametrize("phase", ["starting", "running", "unhealthy", "unreachable"])
@pytest.mark.parametrize(("first", "second", "stopped"), [(EXIT_1, RUNNING, 1), (RUNNING, EXIT_1, 0)])
def test_when_one_rank_has_ended_the_other_is_stopped_first(phase, first, second, stopped) -> None:
    effects = effects_of(gang(phase, first, second))
    assert [(s.rank, s.reason) for s in effects.stops] == [(stopped, "rank_ended")]
    assert (effects.phase_changes, effects.releases, effects.restarts, effects.removals) == ([], [], [], [])


def test_the_other_ranks_unsent_start_command_is_withdrawn() -> None:
    effects = effects_of(gang("starting", EXIT_1, None, orders=[start(), start("open", sent=False)]))
    assert list(effects.withdrawals) == [2]
    assert (effects.stops, effects.releases) == ([], [])


@pytest.mark.parametrize("phase", ["starting", "backoff"])
def test_an_unsent_command_for_a_dead_host_is_withdrawn_with_the_claims(phase) -> None:
    one = gang(phase, EXIT_1, None, orders=[start(), start("open", sent=False)])
    hosts = (host("w1"), host("w2", phase="lost", deleted=True, confirmed_dead=True))
    effects = decide(deployment(one, hosts=hosts, spec=spec(restart="never")), RestartSettings())
    if phase == "backoff":
        effects = decide(deployment(one, hosts=hosts), RestartSettings())
    assert [r.instance for r in effects.releases] == ["g"]
    assert list(effects.withdrawals) == [2]


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
def test_when_all_have_ended_the_one_that_ended_by_itself_decides(states, restart, phase) -> None:
    assert [m.to for m in effects_of(gang("running", *states), restart=restart).phase_changes] == [phase]


def test_ranks_of_a_task_finish_one_after_another() -> None:
    effects = effects_of(gang("running", EXIT_0, RUNNING), restart="never")
    assert (effects.phase_changes, effects.stops, effects.releases) == ([], [], [])


def test_a_refused_rank_stops_the_others() -> None:
    refused = start("refused", code="claim_conflict")
    first = effects_of(gang("scheduled", RUNNING, None, orders=[start(), refused]))
    assert [s.rank for s in first.stops] == [0]
    none_started = effects_of(gang("scheduled", None, None, orders=[start("withdrawn"), refused]))
    assert [m.to for m in none_started.phase_changes] == ["pending"]
    assert [r.instance for r in none_started.releases] == ["g"]


def test_several_ranks_are_placed_again_as_a_whole() -> None:
    effects = effects_of(gang("backoff", EXIT_1, STOPPED))
    assert effects.restarts == []
    assert [m.to for m in effects.phase_changes] == ["pending"]


def test_a_rank_on_a_dead_host_stops_the_others() -> None:
    one = gang("unreachable", RUNNING, RUNNING)
    hosts = (host("w1", phase="lost", deleted=True, confirmed_dead=True), host("w2"))
    effects = decide(deployment(one, hosts=hosts), RestartSettings())
    assert [s.rank for s in effects.stops] == [1]
    assert (effects.removals, effects.releases) == ([], [])


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
def test_a_gangs_phase_is_that_of_the_rank_with_least_progress(phase, states, to) -> None:
    moves = [m.to.value for m in effects_of(gang(phase, *states)).phase_changes]
    assert moves == ([to] if to else [])


LOST = (host("w1"), host("w2", phase="lost"))


def effects_after_loss(one: InstanceFacts, *others: InstanceFacts, hosts=LOST, **fields) -> DeploymentEffects:
    facts = deployment(one, *others, hosts=hosts, spec=spec(**fields))
    return decide(facts, RestartSettings())


def test_a_gang_that_lost_a_worker_is_substituted_and_its_other_ranks_stop() -> None:
    effects = effects_after_loss(gang("unreachable", RUNNING, RUNNING))
    assert [(s.rank, s.reason) for s in effects.stops] == [(0, "rank_lost")]
    assert effects.releases == []
    assert [c.replaces for c in effects.creates] == ["g"]


@pytest.mark.parametrize("phase", ["unreachable", "replaced", "stopping"])
def test_ended_ranks_release_tsubstitute_claims_while_the_lost_one_is_fenced(phase) -> None:
    effects = effects_after_loss(gang(phase, STOPPED, RUNNING))
    assert [(r.instance, r.rank) for r in effects.releases] == [("g", 0)]
    assert effects.removals == []


def without_first(one: InstanceFacts) -> InstanceFacts:
    return replace(one, claims=tuple(c for c in one.claims if c.rank))


def test_a_gang_with_released_ranks_never_resumes() -> None:
    """Its worker is back, but the GPUs of the other rank may be claimed by another instance."""
    effects = effects_after_loss(without_first(gang("unreachable", STOPPED, RUNNING)), hosts=(host("w1"), host("w2")))
    assert [m.to.value for m in effects.phase_changes] == ["stopping"]
    assert [s.rank for s in effects.stops] == [1]


def test_a_task_that_never_restarts_is_left_alone() -> None:
    effects = effects_after_loss(gang("unreachable", RUNNING, RUNNING), restart="never")
    assert (effects.stops, effects.releases, effects.creates) == ([], [], [])


def test_a_gang_is_replaced_once_its_substitute_holds_claims() -> None:
    substitute = replace(instance("h", "scheduled"), replaces="g")
    effects = effects_after_loss(without_first(gang("unreachable", STOPPED, RUNNING)), substitute)
    assert [(m.instance, m.to.value) for m in effects.phase_changes] == [("g", "replaced")]
