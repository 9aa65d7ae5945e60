"""The rollout of a new revision."""

from dataclasses import replace

import pytest

from support.builders.facts import instance, process, spec, start
from support.decisions import LOST, RUNNING, effects_of, elsewhere, phases_of, running


def test_a_rollout_replaces_one_at_a_time_and_stops_the_old_one_first() -> None:
    two = (running("a", age_s=20), running("b", age_s=10))
    both = {"spec": spec(replicas=2), "revision": 2}
    effects = effects_of(*two, **both)
    assert [s.instance for s in effects.stops] == ["a"]
    assert effects.creates == []
    stopping = replace(two[0], phase=instance("x", "stopping").phase, stop_reason="new_revision")
    effects = effects_of(stopping, two[1], **both)
    assert [s.instance for s in effects.stops] == ["a"]
    assert effects.creates == []
    effects = effects_of(two[1], **both)
    assert effects.stops == []
    assert [c.revision for c in effects.creates] == [2]
    coming = instance("c", "starting", revision=2)
    assert effects_of(coming, two[1], **both).stops == []
    arrived = running("c", revision=2)
    assert [s.instance for s in effects_of(arrived, two[1], **both).stops] == ["b"]


def test_of_surplus_instances_the_next_one_stops_with_the_removal_of_the_last_one() -> None:
    """Else a placement pass in between would see the capacity of the first one alone."""
    ended = instance("a", "stopping", stop_reason="new_revision", processes=(process("exited", "stopped", 0),))
    effects = effects_of(ended, running("b", age_s=20), running("c", age_s=10), spec=spec(replicas=2), revision=2)
    assert [r.instance for r in effects.removals] == ["a"]
    assert [s.instance for s in effects.stops] == ["b"]
    assert effects.creates == []


def test_a_rollout_continues_without_a_hint() -> None:
    both = {"spec": spec(replicas=2), "revision": 2}
    old = running("b")
    ended = instance("a", "stopping", stop_reason="new_revision", processes=(process("exited", "stopped", 0),))
    effects = effects_of(ended, old, **both)
    assert [r.instance for r in effects.removals] == ["a"]
    assert [c.revision for c in effects.creates] == [2]
    arriving = instance("c", "starting", revision=2, processes=RUNNING)
    effects = effects_of(arriving, old, **both)
    assert phases_of(effects) == ["running"]
    assert effects.stops == []
    assert effects.requeue_after_s == pytest.approx(0.01)


def test_a_rollout_does_not_wait_for_a_lost_worker() -> None:
    stuck = instance("a", "stopping", stop_reason="new_revision", processes=RUNNING, commands=(start(verb="stop"),))
    effects = effects_of(stuck, revision=2, hosts=LOST)
    assert [c.revision for c in effects.creates] == [2]
    assert effects.releases == effects.removals == []
    assert effects_of(stuck, revision=2).creates == []
    task = {"spec": spec(restart="never"), "revision": 2}
    assert effects_of(stuck, hosts=LOST, **task).creates == [], "it may still work"
    two = {"spec": spec(replicas=2), "revision": 2, "hosts": LOST}
    assert [s.instance for s in effects_of(stuck, elsewhere("b", revision=2), elsewhere("c"), **two).stops] == ["c"]
    replaced = instance("a", "replaced", revision=2, processes=RUNNING)
    assert [s.instance for s in effects_of(replaced, elsewhere("b", revision=2), elsewhere("c"), **two).stops] == ["c"]


def test_a_returned_instance_is_followed_by_another_step() -> None:
    back = instance("a", "unreachable", processes=RUNNING)
    effects = effects_of(back, instance("b", "pending", replaces="a"))
    assert phases_of(effects) == ["running"]
    assert effects.requeue_after_s == pytest.approx(0.01)


def test_a_failing_new_revision_halts_the_rollout() -> None:
    effects = effects_of(
        instance("c", "failed", revision=2), running("b"), spec=spec(replicas=2, restart="never"), revision=2
    )
    assert effects.stops == []


def test_a_pending_instance_with_an_old_spec_is_replaced_at_once() -> None:
    effects = effects_of(instance("a", "pending"), revision=2)
    assert [r.instance for r in effects.removals] == ["a"]
    assert [c.revision for c in effects.creates] == [2]


@pytest.mark.parametrize(("old", "new", "stops"), [(0, 1, ["a"]), (1, 1, ["a"]), (0, 2, [])])
def test_replicas_that_only_growth_needs_are_not_awaited(old: int, new: int, stops: list[str]) -> None:
    """Two are wanted, one of them was placed before; the pending replicas of either revision find no place."""
    waiting = [instance(f"o{n}", "pending", age_s=600) for n in range(old)]
    waiting += [instance(f"n{n}", "pending", age_s=600, revision=2) for n in range(new)]
    effects = effects_of(running("a"), *waiting, spec=spec(replicas=2), revision=2, placed_before=1)
    assert [s.instance for s in effects.stops] == stops
