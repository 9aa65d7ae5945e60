"""Rollouts with `update: rolling`, played in a world whose time passes by hand."""

from dataclasses import replace

import pytest

from controller.domain.instances import ClaimedWorker
from controller.domain.phases import InstancePhase
from controller.domain.placement import NeedError
from controller.domain.rollouts import RequestOutcomes, RolloutRecord, RolloutSnapshot
from support.builders.facts import instance, intent, spec
from support.builders.rollouts import RollingWorld, rolled_out
from support.decisions import LOST, RUNNING, effects_of, elsewhere

CANARY = {"ready_for": "2s", "canary": {"weight": 10, "for": "60s"}}


def test_g53_four_replicas_are_replaced_within_a_surge_of_one_and_never_fewer_are_ready() -> None:
    world = rolled_out(drains_s=5.0).apply().play(200)
    assert (world.state, world.running(2), len(world.instances)) == ("complete", 4, 4)
    assert (world.least_ready, world.most_in_all) == (4, 5)
    assert world.reasons() == ["rollout_started", "rollout_complete"]
    assert world.record is not None
    assert world.record.stable == 2


def test_the_first_revision_replaces_nothing() -> None:
    world = RollingWorld().play(20)
    assert world.state == "complete"
    assert world.reasons() == []
    assert world.most_in_all == 4


def test_an_instance_counts_once_it_has_run_for_ready_for() -> None:
    world = rolled_out(rollout={"ready_for": "30s"}, drains_s=0.0).apply().play(29)
    assert (world.running(1), world.running(2)) == (4, 1)
    world.play(3)
    assert world.running(1) == 3


def test_g54_without_room_and_unavailable_0_it_waits_with_the_reason_of_placement() -> None:
    world = rolled_out(capacity=4).apply().play(100)
    (waiting,) = world.of(2)
    assert (waiting.phase, world.running(1)) == (InstancePhase.PENDING, 4)
    world.instances[waiting.id] = replace(waiting, reason="no_free_gpus", message="no GPU is free")
    world.play(10_000, tick_s=100)
    assert (world.state, world.status) == ("progressing", ("progressing", "no_free_gpus")), (
        "waiting does not count as failing"
    )
    world.capacity = 5
    world.play(200)
    assert (world.state, world.least_ready) == ("complete", 4)


def test_g54_without_room_and_unavailable_1_it_goes_on_one_by_one() -> None:
    world = rolled_out(capacity=4, rollout={"unavailable": 1}).apply().play(200)
    assert (world.state, world.running(2), world.least_ready) == ("complete", 4, 3)


@pytest.mark.parametrize(("hosts", "state"), [(LOST, "complete"), ((), "progressing")])
def test_it_is_complete_though_an_old_one_cannot_stop_since_its_worker_is_lost(
    hosts: tuple[ClaimedWorker, ...], state: str
) -> None:
    """It may take days to return."""
    given = spec(update="rolling", rollout={"ready_for": 0})
    stuck = instance("old", "stopping", stop_reason="new_revision", processes=RUNNING)
    under_way = RolloutRecord(2, 1, seen=0)
    facts = {"spec": given, "revision": 2, "rollout": RolloutSnapshot(under_way)} | ({"hosts": hosts} if hosts else {})
    effects = effects_of(stuck, elsewhere("new", revision=2), **facts)
    assert (effects.rollout or under_way).state == state


def test_surge_0_stops_one_first() -> None:
    world = rolled_out(rollout={"surge": 0, "unavailable": 1}).apply().play(200)
    assert (world.state, world.least_ready, world.most_in_all) == ("complete", 3, 4)


def test_a_larger_surge_replaces_several_at_once() -> None:
    world = rolled_out(rollout={"surge": 4}).apply().play(40)
    assert (world.state, world.least_ready, world.most_in_all) == ("complete", 4, 8)


def test_g55_a_revision_that_does_not_become_ready_fails_after_three_start_timeouts() -> None:
    world = rolled_out(bad={2}, start_timeout=60.0).apply().play(170)
    assert (world.state, len(world.of(2))) == ("progressing", 1)
    world.play(30)
    assert (world.state, world.status) == ("failed", ("degraded", "rollout_failed"))
    assert (world.of(2), world.running(1), world.least_ready) == ([], 4, 4)
    events = len(world.events)
    world.play(1000, tick_s=10)
    assert (world.state, world.of(2), len(world.events)) == ("failed", [], events), "no further tries"


def test_a_slow_start_without_a_failure_is_not_given_up() -> None:
    world = rolled_out(start_timeout=10.0).apply()
    world.step()
    (new,) = world.of(2)
    for _ in range(40):
        world.instances[new.id] = replace(world.instances[new.id], phase=InstancePhase.STARTING, processes=())
        world.step()
        world.now += (world.now - world.now).__class__(seconds=10)
    assert world.state == "progressing"


def test_a_need_that_cannot_be_found_out_fails_at_once() -> None:
    world = rolled_out().apply()
    world.needs[2] = NeedError("no such model", retryable=False, attempts=1, retry_at=None)
    world.play(5)
    assert (world.state, world.of(2), world.running(1)) == ("failed", [], 4)
    assert world.record is not None
    assert "no such model" in world.record.message


def test_g55_the_old_spec_in_mid_rollout_goes_back_without_a_third_revision() -> None:
    world = rolled_out().apply().play(40)
    assert world.running(1) > 0 < world.running(2)
    world.apply(back_to=1).play(200)
    assert (world.state, world.running(1), {i.revision for i in world.instances.values()}) == ("complete", 4, {1})
    assert (world.least_ready, world.most_in_all) == (4, 5)


def test_a_failed_rollout_goes_on_with_a_corrected_revision_or_once_more() -> None:
    failed = rolled_out(bad={2}, start_timeout=10.0).apply().play(60)
    assert failed.state == "failed"
    failed.apply().play(200)
    assert (failed.state, failed.running(3)) == ("complete", 4)
    again = rolled_out(bad={2}, start_timeout=10.0).apply().play(60)
    again.bad.clear()
    again.pause(paused=False).play(200)
    assert (again.state, again.running(2)) == ("complete", 4)


def test_a_paused_rollout_stands_and_an_instance_that_is_lost_comes_back_with_the_stable_revision() -> None:
    world = rolled_out().apply().play(30).pause(paused=True).play(30)
    before = (world.running(1), world.running(2))
    world.play(100)
    assert (world.running(1), world.running(2)) == before
    assert world.status == ("progressing", "rollout_paused")
    gone = world.of(1)[0].id
    del world.instances[gone]
    world.play(20)
    assert world.running(1) + world.running(2) >= 4
    assert world.running(2) == before[1]
    world.pause(paused=False).play(200)
    assert (world.state, world.running(2)) == ("complete", 4)


def test_a_pause_before_an_apply_starts_nothing() -> None:
    world = rolled_out().pause(paused=True).apply().play(100)
    assert (world.of(2), world.running(1)) == ([], 4)


def test_a_sleeping_deployment_starts_nothing_and_wakes_with_the_new_revision() -> None:
    world = rolled_out(replicas=1)
    world.replicas = 0
    world.play(20).apply().play(60)
    assert world.instances == {}
    world.replicas = 1
    world.play(20)
    assert (world.state, world.running(2)) == ("complete", 1)


def test_a_deployment_that_wakes_with_a_bad_revision_falls_back() -> None:
    world = rolled_out(replicas=1, bad={2}, start_timeout=10.0)
    world.replicas = 0
    world.play(20).apply().play(20)
    world.replicas = 1
    world.play(100)
    assert (world.state, world.running(1), world.of(2)) == ("failed", 1, [])


@pytest.mark.parametrize("replicas", [2, 8])
def test_the_autoscalers_number_may_change_in_mid_rollout(replicas: int) -> None:
    world = rolled_out().apply().play(30)
    world.replicas = replicas
    world.play(300)
    assert (world.state, world.running(2), len(world.instances)) == ("complete", replicas, replicas)
    assert world.least_ready >= min(replicas, 4)
    assert world.most_in_all <= max(replicas, 4) + 1


def test_a_stop_in_mid_rollout_ends_all_with_its_own_reason() -> None:
    world = rolled_out().apply().play(30)
    effects_of = replace(world.facts(), intents=(intent(),))
    assert effects_of.intents
    world.replicas = 0
    effects = world.step()
    assert {s.reason for s in effects.stops} == {"scaled_down"}
    world.play(30)
    assert world.instances == {}


def test_a_canary_gets_its_share_of_the_replicas_and_goes_on_by_itself() -> None:
    world = rolled_out(rollout=CANARY).apply().play(30)
    assert world.record is not None
    assert (world.state, world.running(1), world.running(2), world.record.weight) == ("canary", 4, 1, 10)
    world.play(30)
    assert world.state == "canary"
    world.play(200)
    assert (world.state, world.running(2), world.least_ready) == ("complete", 4, 4)
    assert world.reasons() == ["rollout_started", "rollout_promoted", "rollout_complete"]


def test_the_weight_never_falls_until_a_rollout_is_complete() -> None:
    weights: list[int] = []

    def note(world: RollingWorld) -> None:
        if world.record is not None and world.state in ("canary", "progressing"):
            weights.append(world.record.weight or 0)

    rolled_out(rollout=CANARY).apply()
    world = rolled_out(rollout=CANARY)
    world.watch = note
    world.apply().play(200)
    assert weights == sorted(weights)
    assert weights[0] == 10
    assert weights[-1] >= 75


def test_a_canary_of_half_the_requests_has_half_of_the_replicas() -> None:
    world = rolled_out(replicas=6, rollout={**CANARY, "canary": {"weight": 50, "for": "1h"}}).apply().play(200)
    assert (world.running(2), world.running(1), world.least_ready, world.most_in_all) == (3, 4, 6, 7)


def test_errors_abort_a_canary_and_the_old_revision_takes_its_place_again() -> None:
    world = rolled_out(rollout={**CANARY, "abort": {"error_ratio": 0.05, "after_requests": 50}}).apply().play(10)
    world.outcomes = RequestOutcomes(49, 49)
    world.play(2)
    assert world.state == "canary", "too few requests to judge"
    world.outcomes = RequestOutcomes(100, 5)
    world.play(2)
    assert world.state == "canary", "5 % are allowed"
    world.outcomes = RequestOutcomes(100, 6)
    world.play(1)
    assert world.record is not None
    assert (world.state, world.record.weight) == ("aborted", 0)
    world.play(60)
    assert world.status == ("degraded", "rollout_aborted")
    assert (world.of(2), world.running(1), world.least_ready) == ([], 4, 4)
    world.outcomes = RequestOutcomes()
    world.pause(paused=False).play(10)
    assert world.state == "canary", "resumed: tried once more"


def test_errors_abort_in_the_middle_of_a_rollout_within_the_bounds() -> None:
    world = rolled_out(rollout={"ready_for": "2s", "abort": {}}).apply().play(12)
    assert world.running(2) >= 2
    world.outcomes = RequestOutcomes(100, 50)
    world.play(100)
    assert (world.state, world.running(1), world.of(2)) == ("aborted", 4, [])
    assert (world.least_ready, world.most_in_all) == (4, 5)


def test_a_silent_gateway_keeps_a_canary_but_known_errors_abort_it() -> None:
    rollout = {**CANARY, "abort": {}}
    world = rolled_out(rollout=rollout).apply()
    world.outcomes = RequestOutcomes(100, 0, silent=("p",))
    world.play(200)
    assert world.record is not None
    assert (world.state, "gateway p does not report" in world.record.message) == ("canary", True)
    world.outcomes = RequestOutcomes(100, 100, silent=("p",))
    world.play(2)
    assert world.state == "aborted"
    unjudged = rolled_out(rollout=CANARY).apply()
    unjudged.outcomes = RequestOutcomes(silent=("p",))
    assert unjudged.play(200).state == "complete", "without abort the time alone decides"


def test_a_canary_that_dies_begins_its_time_anew() -> None:
    world = rolled_out(rollout=CANARY).apply().play(50)
    world.kill(world.of(2)[0].id)
    world.play(40)
    assert world.state == "canary"
    world.play(200)
    assert world.state == "complete"


def test_no_deployment_is_left_without_a_next_look() -> None:
    """A step that waits for time alone says when to look again."""
    world = rolled_out(rollout={**CANARY, "ready_for": "5s"}).apply()
    for _ in range(200):
        effects = world.step()
        world._place()
        world._agents()
        moves = any(
            i.phase in (InstancePhase.STARTING, InstancePhase.STOPPING, InstancePhase.PENDING)
            for i in world.instances.values()
        )
        assert effects.requeue_after_s is not None or moves or world.state == "complete"
        world.now += (world.now - world.now).__class__(seconds=1)
    assert world.state == "complete"


@pytest.mark.parametrize(("replicas", "surge"), [(6, 2), (4, 3), (6, 6)])
def test_a_canary_that_has_places_for_a_part_of_its_surge_takes_those_of_old_ones(replicas: int, surge: int) -> None:
    """They do not all fit beside the old ones: as many of these go as new ones are available."""
    rollout = {"surge": surge, "unavailable": 0, "canary": {"weight": 66, "for": 30}}
    world = rolled_out(replicas=replicas, capacity=replicas + 1, rollout=rollout).apply().play(400)
    assert (world.state, world.running(world.revision)) == ("complete", replicas)
    assert world.least_ready >= replicas
