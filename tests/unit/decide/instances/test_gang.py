"""Gangs: claims stay until every rank has ended, and the rank that ended by itself gives the reason."""

from dataclasses import replace
from datetime import timedelta

import pytest

from controller.decide.instances.decide import decide
from controller.domain.effects import DeploymentEffects
from controller.domain.instances import InstanceState
from controller.domain.restart_delays import RestartSettings
from support.builders.facts import NOW, deployment, host, instance, process, spec, start

EXIT_1 = ("exited", "exit", 1)
EXIT_0 = ("exited", "exit", 0)
STOPPED = ("exited", "stopped", 0)
RUNNING = ("running",)


def gang(phase: str, *states, orders=None) -> InstanceState:
    """Rank n on worker w(n+1); `states` are its processes' ends, None where none was reported."""
    one = instance("g", phase)
    claims = [replace(c, rank=rank, worker_id=f"w{rank + 1}") for rank in range(len(states)) for c in one.claims]
    processes = [replace(process(*s), rank=n, worker_id=f"w{n + 1}") for n, s in enumerate(states) if s]
    commands = orders or [start() for _ in states]
    commands = [replace(c, id=n + 1, rank=n, worker_id=f"w{n + 1}") for n, c in enumerate(commands)]
    return replace(one, claims=tuple(claims), processes=tuple(processes), commands=tuple(commands))


def effects_of(one: InstanceState, **fields) -> DeploymentEffects:
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


@pytest.mark.parametrize(("second", "stopped"), [(EXIT_0, []), (EXIT_1, [2])])
def test_ranks_of_a_task_continue_only_where_all_that_have_ended_ended_well(second, stopped) -> None:
    facts = deployment(
        gang("running", EXIT_0, second, RUNNING),
        hosts=tuple(host(f"w{n}") for n in (1, 2, 3)),
        spec=spec(restart="never"),
    )
    assert [s.rank for s in decide(facts, RestartSettings()).stops] == stopped


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


def effects_after_loss(one: InstanceState, *others: InstanceState, hosts=LOST, **fields) -> DeploymentEffects:
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


def without_first(one: InstanceState) -> InstanceState:
    return replace(one, claims=tuple(c for c in one.claims if c.rank))


def test_a_gang_with_released_ranks_never_resumes() -> None:
    """Its worker is back, but the GPUs of the other rank may be claimed by another instance."""
    effects = effects_after_loss(without_first(gang("unreachable", STOPPED, RUNNING)), hosts=(host("w1"), host("w2")))
    assert [m.to.value for m in effects.phase_changes] == ["stopping"]
    assert [s.rank for s in effects.stops] == [1]


@pytest.mark.parametrize("restart", ["never", "on_failure"])
def test_a_task_that_lost_a_worker_frees_its_other_gpus_and_gets_no_copy(restart) -> None:
    """Its other ranks hang, since they wait for the lost one."""
    effects = effects_after_loss(gang("unreachable", RUNNING, RUNNING), restart=restart)
    assert [(s.rank, s.reason) for s in effects.stops] == [(0, "rank_lost")]
    assert (effects.releases, effects.creates, effects.removals) == ([], [], [])
    (told,) = effects.progress
    assert "gpuward delete worker w2 --confirm-dead" in told.message
    ended = effects_after_loss(gang("unreachable", STOPPED, RUNNING), restart=restart)
    assert [(r.instance, r.rank) for r in ended.releases] == [("g", 0)]
    assert (ended.creates, ended.removals) == ([], [])


@pytest.mark.parametrize("restart", ["never", "on_failure"])
@pytest.mark.parametrize("phase", ["unreachable", "lost"])
def test_a_task_whose_worker_may_still_run_it_keeps_its_other_ranks_until_that_is_lost(restart, phase) -> None:
    hosts = (host("w1"), host("w2", phase=phase))
    effects = effects_after_loss(gang("unreachable", RUNNING, RUNNING), hosts=hosts, restart=restart)
    assert bool(effects.stops) == (phase == "lost")


DEAD = (host("w1"), host("w2", phase="lost", confirmed_dead=True))
BACK = (host("w1"), host("w2"))


@pytest.mark.parametrize(
    ("restart", "hosts", "second", "to", "removed"),
    [
        ("never", DEAD, RUNNING, "failed", False),
        ("never", BACK, EXIT_0, "failed", False),  # its other ranks were stopped before they had done their part
        ("never", BACK, EXIT_1, "failed", False),
        ("on_failure", DEAD, RUNNING, None, True),  # and made anew
        ("on_failure", BACK, EXIT_0, None, True),
    ],
)
def test_what_becomes_of_a_task_whose_other_ranks_were_stopped(restart, hosts, second, to, removed) -> None:
    one = without_first(gang("unreachable", STOPPED, second))
    effects = effects_after_loss(one, hosts=hosts, restart=restart)
    assert [m.to.value for m in effects.phase_changes] == ([to] if to else [])
    assert [r.instance for r in effects.removals] == (["g"] if removed else [])
    if to:
        assert effects.creates == []


def test_a_task_with_a_stopped_rank_ends_when_its_lost_worker_is_back() -> None:
    effects = effects_after_loss(without_first(gang("unreachable", STOPPED, RUNNING)), hosts=BACK, restart="never")
    assert [s.rank for s in effects.stops] == [1]
    assert (effects.phase_changes, effects.removals, effects.creates) == ([], [], [])


@pytest.mark.parametrize(("second", "to"), [(RUNNING, "running"), (EXIT_0, "succeeded"), (EXIT_1, "failed")])
def test_a_task_whose_other_ranks_had_done_their_part_goes_on(second, to) -> None:
    """Only its GPUs were released while the worker was lost."""
    one = without_first(gang("unreachable", EXIT_0, second))
    effects = effects_after_loss(one, hosts=BACK, restart="never")
    assert [m.to.value for m in effects.phase_changes] == [to]
    assert effects.stops == []


@pytest.mark.parametrize("restart", ["never", "on_failure"])
def test_a_task_whose_ends_are_all_known_has_its_result_though_a_worker_is_lost(restart) -> None:
    effects = effects_after_loss(gang("unreachable", EXIT_0, EXIT_0), restart=restart)
    assert [m.to.value for m in effects.phase_changes] == ["succeeded"]
    assert (effects.creates, effects.removals) == ([], [])
    failed = effects_after_loss(gang("unreachable", RUNNING, EXIT_1), restart=restart)
    assert [s.rank for s in failed.stops] == [0]
    assert (failed.creates, failed.removals) == ([], [])


@pytest.mark.parametrize(
    ("ends", "cause", "collateral"),
    [
        ([(("exited", "exit", 1), 5), (("exited", "exit", 3), 2)], 1, [0]),
        ([(("exited", "exit", 1), 2), (("exited", "exit", 3), 5)], 0, [1]),
        ([(("exited", "exit", 1), 2), (("exited", "exit", 3), 2)], 0, [1]),  # nothing tells them apart
        ([(("exited", "exit", 1), None), (("exited", "exit", 3), 9)], 1, [0]),
        ([(("exited", "stopped", 0), 1), (("exited", "exit", 3), 5)], 1, []),
        ([(("exited", "exit", 0), 1), (("exited", "exit", 3), 5)], 1, []),
        ([(("exited", "exit", -9), 3), (("exited", "exit", 3), 4), (("exited", "exit", 7), 1)], 2, [0, 1]),
    ],
)
def test_the_rank_that_failed_first_is_the_cause_and_the_others_follow_from_it(ends, cause, collateral) -> None:
    one = gang("running", *(states for states, _ in ends))
    times = [None if second is None else NOW + timedelta(seconds=second) for _, second in ends]
    processes = tuple(
        replace(p, ended_at=time, message=f"rank {p.rank}") for p, time in zip(one.processes, times, strict=True)
    )
    facts = deployment(replace(one, processes=processes), hosts=(host("w1"), host("w2"), host("w3")))
    effects = decide(facts, RestartSettings())
    (change,) = effects.phase_changes
    assert f"rank {cause}" in change.message
    (event,) = [e for e in effects.events if e.reason == "backoff"]
    assert (event.evidence["rank"], event.evidence["collateral_ranks"]) == (cause, collateral)
    assert f"worker:w{cause + 1}" in event.objects


def test_a_gang_is_replaced_once_its_substitute_holds_claims() -> None:
    substitute = replace(instance("h", "scheduled"), replaces="g")
    effects = effects_after_loss(without_first(gang("unreachable", STOPPED, RUNNING)), substitute)
    assert [(m.instance, m.to.value) for m in effects.phase_changes] == [("g", "replaced")]
