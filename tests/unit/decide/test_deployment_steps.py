"""A deployment's steps: how many instances, of which revision; stops; analysis; deletion; the roll-up."""

from dataclasses import replace
from datetime import timedelta

import pytest

from controller.decide.instances.decide import decide
from controller.decide.instances.need import Finished
from controller.domain.instances import IntentFacts
from controller.domain.phases import InstancePhase
from controller.domain.placement import Need
from controller.domain.restarts import RestartSettings
from support.facts import NOW, deployment, host, instance, intent, process, spec, start

SETTINGS = RestartSettings()
RUNNING = (process("running"),)


def plan_of(*instances, finished=None, known=None, **fields):
    return decide(deployment(*instances, **fields), SETTINGS, finished, known)


def running(name: str, **fields):
    return instance(name, "running", processes=RUNNING, **fields)


def test_creates_what_is_missing() -> None:
    assert len(plan_of(spec=spec(replicas=3)).creates) == 3
    assert len(plan_of(running("a"), spec=spec(replicas=3)).creates) == 2
    assert plan_of(running("a")).creates == []


def test_gives_up_what_holds_least_first() -> None:
    some = (running("old", age_s=90), running("new", age_s=10), instance("waits", "pending"))
    plan = plan_of(*some, spec=spec(replicas=2))
    assert [r.instance for r in plan.removals] == ["waits"]
    plan = plan_of(*some, spec=spec(replicas=1))
    assert [r.instance for r in plan.removals] == ["waits"]
    assert [s.instance for s in plan.stops] == ["new"]


def test_who_is_named_by_an_intent_goes_first() -> None:
    """A policy's idle replica, though another one holds less; where fewer go than are named, the one of least worth."""
    limit = IntentFacts("policy", 2, "policy_idle", ("idle", "gone"))
    some = (running("old", age_s=90), running("idle", age_s=50), running("new", age_s=10))
    (move,) = plan_of(*some, spec=spec(replicas=3), intents=(limit,)).phase_changes
    assert (move.instance, move.stop_reason) == ("idle", "policy_idle")


def test_an_intent_limits_and_says_so() -> None:
    plan = plan_of(running("a"), running("b"), spec=spec(replicas=2), intents=(intent(),))
    assert {s.instance for s in plan.stops} == {"a", "b"}
    assert {m.stop_reason for m in plan.phase_changes} == {"stopped"}


def test_a_stop_orders_once_and_waits_for_the_agents_word() -> None:
    stopping = instance("a", "stopping", stop_reason="deleted", processes=RUNNING)
    gone = {"deleted_at": NOW}
    assert len(plan_of(stopping, **gone).stops) == 1
    ordered = replace(stopping, commands=(start(), start(verb="stop")))
    plan = plan_of(ordered, **gone)
    assert (plan.stops, plan.releases, plan.removals) == ([], [], [])
    dead = replace(ordered, processes=(process("exited", "stopped", 0),))
    plan = plan_of(dead, **gone)
    assert plan.releases
    assert [r.instance for r in plan.removals] == ["a"]
    assert plan.finish


def test_an_order_that_nobody_saw_is_withdrawn() -> None:
    unsent = instance("a", "scheduled", commands=(start("open", sent=False),))
    plan = plan_of(unsent, deleted_at=NOW)
    assert [w.command_id for w in plan.withdrawals] == [7]
    assert plan.releases
    assert plan.removals
    maybe_seen = instance("a", "scheduled", commands=(start("open", sent=True),))
    plan = plan_of(maybe_seen, deleted_at=NOW)
    assert plan.withdrawals == plan.releases == plan.removals == []
    assert len(plan.stops) == 1


def test_a_stop_on_a_silent_host_waits_for_proof() -> None:
    one = instance("a", "unreachable", processes=RUNNING)
    plan = plan_of(one, deleted_at=NOW, hosts=(host(phase="lost"),))
    assert plan.releases == plan.removals == []
    plan = plan_of(one, deleted_at=NOW, hosts=(host(phase="lost", confirmed_dead=True),))
    assert plan.releases
    assert plan.finish


def test_deletion_of_what_holds_nothing_is_done_at_once() -> None:
    plan = plan_of(instance("a", "analyzing"), need=None, deleted_at=NOW)
    assert [r.instance for r in plan.removals] == ["a"]
    assert plan.finish
    assert plan.analyse is None


def test_drained_instances_go_and_new_ones_come() -> None:
    plan = plan_of(running("a"), hosts=(host(draining=True),))
    assert [s.reason for s in plan.stops] == ["drained"]
    assert len(plan.creates) == 1


def test_a_task_that_is_pushed_out_queues_again_with_its_age() -> None:
    task = running("a", preempted_for="b", age_s=900)
    plan = plan_of(task, spec=spec(restart="never"))
    assert [s.reason for s in plan.stops] == ["preempted"]
    assert [(c.replaces, c.born) for c in plan.creates] == [("a", task.created_at)]


@pytest.mark.parametrize("sent_away", [{"preempted_for": "b"}, {}], ids=["pushed out", "drained"])
def test_a_task_that_is_done_when_it_is_to_leave_is_not_done_again(sent_away: dict[str, str]) -> None:
    done = instance("a", "running", processes=(process("exited", "exit", 0),), **sent_away)
    fields = {"spec": spec(restart="never"), "hosts": (host(draining=not sent_away),)}
    plan = plan_of(done, **fields)
    assert ([m.to for m in plan.phase_changes], plan.creates) == ([InstancePhase.SUCCEEDED], [])
    after = plan_of(instance("a", "succeeded", **sent_away), **fields)
    assert (after.stops, after.removals, after.creates) == ([], [], [])


def test_a_new_revision_replaces_one_at_a_time_old_stopped_first() -> None:
    two = (running("a", age_s=20), running("b", age_s=10))
    both = {"spec": spec(replicas=2), "revision": 2}
    plan = plan_of(*two, **both)
    assert [s.instance for s in plan.stops] == ["a"]
    assert plan.creates == []
    stopping = replace(two[0], phase=instance("x", "stopping").phase, stop_reason="new_revision")
    plan = plan_of(stopping, two[1], **both)
    assert [s.instance for s in plan.stops] == ["a"]
    assert plan.creates == []
    plan = plan_of(two[1], **both)
    assert plan.stops == []
    assert [c.revision for c in plan.creates] == [2]
    coming = instance("c", "starting", revision=2)
    assert plan_of(coming, two[1], **both).stops == []
    arrived = running("c", revision=2)
    assert [s.instance for s in plan_of(arrived, two[1], **both).stops] == ["b"]


def test_a_replacement_goes_on_without_a_hint() -> None:
    both = {"spec": spec(replicas=2), "revision": 2}
    old = running("b")
    ended = instance("a", "stopping", stop_reason="new_revision", processes=(process("exited", "stopped", 0),))
    plan = plan_of(ended, old, **both)
    assert [r.instance for r in plan.removals] == ["a"]
    assert [c.revision for c in plan.creates] == [2]
    arriving = instance("c", "starting", revision=2, processes=RUNNING)
    plan = plan_of(arriving, old, **both)
    assert [m.to.value for m in plan.phase_changes] == ["running"]
    assert plan.stops == []
    assert plan.requeue_after_s == pytest.approx(0.01)


LOST = (host(phase="lost", reason="silent"), host("w2"))


def elsewhere(name: str, **fields):
    """One that runs on the other host."""
    one = running(name, **fields)
    return replace(one, claims=tuple(replace(c, worker_id="w2") for c in one.claims))


def test_a_replacement_does_not_wait_for_a_lost_host() -> None:
    stuck = instance("a", "stopping", stop_reason="new_revision", processes=RUNNING, commands=(start(verb="stop"),))
    plan = plan_of(stuck, revision=2, hosts=LOST)
    assert [c.revision for c in plan.creates] == [2]
    assert plan.releases == plan.removals == []
    assert plan_of(stuck, revision=2).creates == []
    task = {"spec": spec(restart="never"), "revision": 2}
    assert plan_of(stuck, hosts=LOST, **task).creates == [], "it may still work"
    two = {"spec": spec(replicas=2), "revision": 2, "hosts": LOST}
    assert [s.instance for s in plan_of(stuck, elsewhere("b", revision=2), elsewhere("c"), **two).stops] == ["c"]
    replaced = instance("a", "replaced", revision=2, processes=RUNNING)
    assert [s.instance for s in plan_of(replaced, elsewhere("b", revision=2), elsewhere("c"), **two).stops] == ["c"]


def test_a_return_is_followed_by_a_look_at_who_is_too_many() -> None:
    back = instance("a", "unreachable", processes=RUNNING)
    plan = plan_of(back, instance("b", "pending", replaces="a"))
    assert [m.to.value for m in plan.phase_changes] == ["running"]
    assert plan.requeue_after_s == pytest.approx(0.01)


def test_old_revisions_that_run_are_not_what_was_applied() -> None:
    arriving = instance("a", "starting", revision=2, processes=RUNNING)
    plan = plan_of(arriving, running("b"), spec=spec(replicas=2), revision=2, phase="unset")
    assert plan.status is not None
    assert plan.status.ready == 2
    assert plan.status.phase == "progressing"


def test_the_deployment_says_at_once_why() -> None:
    plan = plan_of(instance("a", "running", processes=(process("exited", "exit", 3),)))
    assert plan.status is not None
    assert plan.status.phase == "degraded"
    assert plan.status.message == "exited with code 3; restarts in 10 s"
    over = instance("a", "backoff", reason="exit", message="exited with code 3", processes=(process("exited"),))
    plan = plan_of(over)
    assert [r.instance for r in plan.restarts] == ["a"]
    assert plan.status is not None
    assert (plan.status.phase, plan.status.message) == ("progressing", "")


def test_a_failing_new_revision_halts_the_replacement() -> None:
    plan = plan_of(
        instance("c", "failed", revision=2), running("b"), spec=spec(replicas=2, restart="never"), revision=2
    )
    assert plan.stops == []


def test_what_waits_with_an_old_spec_is_replaced_at_once() -> None:
    plan = plan_of(instance("a", "pending"), revision=2)
    assert [r.instance for r in plan.removals] == ["a"]
    assert [c.revision for c in plan.creates] == [2]


def test_analysis_runs_while_somebody_waits() -> None:
    plan = plan_of(instance("a", "pending"), need=None)
    assert plan.analyse == 1
    assert [m.to.value for m in plan.phase_changes] == ["analyzing"]
    again = plan_of(instance("a", "analyzing"), need=None)
    assert again.analyse == 1
    assert again.phase_changes == []
    assert plan_of(instance("a", "analyzing"), need=None, intents=(intent(),)).analyse is None


def test_what_is_created_while_the_need_is_worked_out_says_so_from_the_start() -> None:
    assert [c.analyzing for c in plan_of(need=None).creates] == [True]
    assert [c.analyzing for c in plan_of().creates] == [False]


def test_a_known_need_is_stored_and_wakes_placement() -> None:
    plan = plan_of(need=None, known=Need(memory_mib=1))
    assert plan.store_need is not None
    assert plan.creates
    assert plan.wake_placement
    assert plan.analyse is None


def test_a_finished_analysis_is_stored_if_it_is_of_this_input() -> None:
    waits = instance("a", "analyzing")
    plan = plan_of(waits, need=None, finished=Finished("hash-1", need=Need(memory_mib=5)))
    assert plan.store_need is not None
    assert plan.store_need.need == Need(memory_mib=5)
    assert plan.wake_placement
    assert plan.analyse is None
    stale = plan_of(waits, need=None, finished=Finished("another", need=Need(memory_mib=5)))
    assert stale.store_need is None
    assert stale.analyse == 1


@pytest.mark.parametrize(
    ("phases", "replicas", "restart", "expected"),
    [
        ([], 1, "always", "pending"),
        ([], 0, "always", "stopped"),
        (["pending"], 1, "always", "pending"),
        (["starting"], 1, "always", "progressing"),
        (["running"], 1, "always", "running"),
        (["running", "pending"], 2, "always", "degraded"),
        (["running", "starting"], 2, "always", "progressing"),
        (["running", "backoff"], 2, "always", "degraded"),
        (["succeeded"], 1, "never", "succeeded"),
        (["failed"], 1, "never", "failed"),
        (["failed", "running"], 2, "never", "degraded"),
        (["running", "succeeded"], 2, "never", "running"),
    ],
)
def test_the_deployments_phase(phases, replicas, restart, expected) -> None:
    far = NOW + timedelta(minutes=5)
    some = [
        instance(f"i{n}", p, processes=RUNNING if p == "running" else (), not_before=far if p == "backoff" else None)
        for n, p in enumerate(phases)
    ]
    plan = plan_of(*some, spec=spec(replicas=replicas, restart=restart), phase="unset")
    assert plan.status is not None
    assert plan.status.phase == expected


def test_nothing_new_writes_nothing() -> None:
    first = deployment(running("a"))
    update = decide(first, SETTINGS).status
    assert update is not None
    settled = replace(
        first,
        phase=update.phase,
        ready=update.ready,
        conditions=update.conditions,
        reason=update.reason,
        message=update.message,
    )
    assert not decide(settled, SETTINGS).writes
