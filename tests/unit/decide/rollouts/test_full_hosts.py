"""Rollouts where nothing is free beside the deployment's own replicas."""

from dataclasses import replace

import pytest

from controller.domain.phases import InstancePhase
from schemas.placement_reasons import Reason
from support.builders.rollouts import RollingWorld, rolled_out

NOT_SERVING = ["scheduled", "starting", "backoff", "unhealthy", "unreachable"]
CANARY = {"ready_for": "2s", "canary": {"weight": 10, "for": "20s"}}


def hanging(world: RollingWorld, number: int, phase: str) -> RollingWorld:
    """So many of its replicas do not serve, and need a new revision for that."""
    for name in list(world.instances)[:number]:
        world.hang(name, phase)
    world.begin_bounds()
    return world


@pytest.mark.parametrize("phase", NOT_SERVING)
@pytest.mark.parametrize("number", [1, 4])
@pytest.mark.parametrize("rollout", [{}, CANARY], ids=["plain", "canary"])
def test_old_replicas_that_do_not_serve_give_their_places_to_the_new_revision(
    phase: str, number: int, rollout: dict[str, object]
) -> None:
    """Nothing may be unavailable, and yet those go: of what serves, none is missed."""
    world = hanging(rolled_out(capacity=4, rollout=rollout), number, phase).apply().play(30)
    for name in list(world.silent):
        world.returns(name)
    world.play(400)
    assert world.least_ready >= 4 - number
    if phase == "unreachable":  # these ran on, and serve again: one place was needed
        assert world.running(2) >= 1
        return
    assert world.running(2) >= number, "each place that served nothing has a new replica"
    if number == 4:
        assert (world.state, world.running(2)) == ("complete", 4)


@pytest.mark.parametrize("phase", ["backoff", "unhealthy", "unreachable"])
def test_a_bad_revision_takes_the_place_of_one_old_replica_that_does_not_serve_and_not_of_all(phase: str) -> None:
    world = hanging(rolled_out(capacity=4, bad={2}), 3, phase).apply().play(50)
    assert len(world.of(1)) >= 3, "the others may recover, and the new revision has not shown that it works"


def test_an_old_replica_that_may_yet_serve_stays_where_the_new_one_finds_a_place_beside_it() -> None:
    world = hanging(rolled_out(capacity=5), 1, "backoff").apply()
    world.step()
    assert len(world.of(1)) == 4
    assert world.play(300).state == "complete"


@pytest.mark.parametrize("reason", [Reason.LABEL_MISMATCH, Reason.NEED_GT_CAPACITY, Reason.NOT_READY])
def test_nothing_goes_for_a_revision_that_fits_nowhere_even_then(reason: Reason) -> None:
    world = hanging(rolled_out(capacity=4), 2, "unhealthy").apply()
    world.step()
    (new,) = world.of(2)
    world.instances[new.id] = replace(new, reason=str(reason))
    world.play(200)
    assert len(world.of(1)) == 4


@pytest.mark.parametrize("rollout", [{"unavailable": 1}, {"unavailable": 1, **CANARY}, {"surge": 0, "unavailable": 1}])
@pytest.mark.parametrize("update", ["rolling", "recreate"])
@pytest.mark.parametrize("late", [0, 15], ids=["with the apply", "in mid-rollout"])
def test_a_deployment_that_also_grows_is_replaced_in_the_places_that_it_has(
    rollout: dict[str, object], update: str, late: int
) -> None:
    world = rolled_out(replicas=2, capacity=2, rollout=rollout, update=update)
    world.apply()
    world.play(late)
    world.replicas = 4
    world.play(400)
    assert (world.running(2), world.running(1)) == (2, 0)
    assert world.least_ready >= 1
    world.capacity = 4
    world.play(60)
    assert world.running(2) == 4


def test_growth_that_has_a_place_gives_it_to_the_rollout_but_no_replica_of_before_is_missed() -> None:
    world = rolled_out(replicas=2, capacity=3)
    world.replicas = 4
    world.apply().play(300)
    assert (world.running(2), world.running(1)) == (3, 0)
    assert world.least_ready >= 2


def test_a_rollout_in_all_places_that_there_are_is_complete_and_tells_what_has_none() -> None:
    world = rolled_out(replicas=2, capacity=2, rollout={"unavailable": 1})
    world.replicas = 3
    world.apply().play(300)
    assert world.record is not None
    assert (world.state, "2 of 3" in world.record.message) == ("complete", True)


def test_a_successor_that_needs_more_than_its_place_stops_no_further_replica() -> None:
    """With `recreate` it was one of two: what is missing is no growth."""
    world = rolled_out(replicas=2, capacity=2, update="recreate").apply().play(2)
    world.capacity = 0
    world.play(200)
    assert (len(world.of(1)), len(world.of(2))) == (1, 1)


def test_a_rollout_that_cannot_go_on_names_what_holds_the_places_and_what_would_move_it() -> None:
    world = rolled_out(capacity=4).apply().play(100)
    assert world.record is not None
    holders = sorted(i.id for i in world.of(1))
    told = world.record.message
    assert world.record.reason == "rollout_blocked"
    assert all(name in told for name in holders[:3])
    assert all(word in told for word in ("revision 1", "`rollout.unavailable: 1`", "recreate", "surge"))
    assert world.status == ("progressing", "rollout_blocked"), "told where no instance has a reason of its own"
    (new,) = world.of(2)
    world.instances[new.id] = replace(new, reason="need_gt_free", message="no GPU is free")
    effects = world.step()
    assert effects.status is not None
    assert effects.status.reason == "need_gt_free"
    assert "no GPU is free" in effects.status.message
    assert holders[0] in effects.status.message


def test_the_named_unavailable_moves_it_and_so_does_recreate() -> None:
    for change in ({"rollout": {"unavailable": 1}}, {"update": "recreate"}):
        world = rolled_out(capacity=4).apply().play(60)
        assert world.running(1) == 4
        for name, value in change.items():
            setattr(world, name, value)
        world._specs.clear()
        assert world.play(400).running(2) == 4
        assert world.least_ready >= 3


def test_of_a_rollout_that_lacks_replicas_the_named_unavailable_is_large_enough() -> None:
    world = rolled_out(capacity=4, rollout={"unavailable": 1})
    world.hang("i001", "unreachable")
    world.play(70)  # its worker is lost
    world.apply().play(60)
    assert world.record is not None
    assert "`rollout.unavailable: 2`" in world.record.message
    world.rollout = {"unavailable": 2}
    world._specs.clear()
    world.play(200)
    assert (world.running(1), world.running(2)) == (0, 3)


@pytest.mark.parametrize("then", ["paused", "room", "not looked for long"])
def test_it_does_not_say_so_while_it_can_go_on(then: str) -> None:
    world = rolled_out(capacity=5 if then == "room" else 4).apply()
    world.play(5)
    if then == "paused":
        world.pause(paused=True).play(60)
    assert world.record is not None
    assert world.record.reason != "rollout_blocked"


def test_a_silent_worker_of_old_replicas_costs_one_at_most_and_the_others_serve_when_it_returns() -> None:
    """All four are on a worker that says nothing for a while. They run on."""
    world = rolled_out(capacity=4).apply().play(2)
    old = [i.id for i in world.of(1)]
    for name in old:
        world.hang(name, "unreachable")
    world.play(30)
    for name in old:
        world.returns(name)
    world.step()
    world.step()
    assert sum(world.instances[name].phase is InstancePhase.RUNNING for name in old) >= 3
