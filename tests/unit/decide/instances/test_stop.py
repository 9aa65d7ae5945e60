"""Stopping instances: withdrawn commands, stop commands, claims released on proof."""

from dataclasses import replace
from datetime import timedelta

from support.builders.facts import NOW, host, instance, process, spec, start
from support.decisions import RUNNING, effects_of, running


def test_a_stop_is_ordered_once_and_awaits_the_agents_report() -> None:
    stopping = instance("a", "stopping", stop_reason="deleted", processes=RUNNING)
    gone = {"deleted_at": NOW}
    assert len(effects_of(stopping, **gone).stops) == 1
    ordered = replace(stopping, commands=(start(), start(verb="stop")))
    effects = effects_of(ordered, **gone)
    assert (effects.stops, effects.releases, effects.removals) == ([], [], [])
    dead = replace(ordered, processes=(process("exited", "stopped", 0),))
    effects = effects_of(dead, **gone)
    assert effects.releases
    assert [r.instance for r in effects.removals] == ["a"]
    assert effects.finish


def test_an_unsent_start_command_is_withdrawn() -> None:
    unsent = instance("a", "scheduled", commands=(start("open", sent=False),))
    effects = effects_of(unsent, deleted_at=NOW)
    assert list(effects.withdrawals) == [7]
    assert effects.releases
    assert effects.removals
    maybe_seen = instance("a", "scheduled", commands=(start("open", sent=True),))
    effects = effects_of(maybe_seen, deleted_at=NOW)
    assert not effects.withdrawals
    assert effects.releases == effects.removals == []
    assert len(effects.stops) == 1


def test_a_stop_on_a_silent_worker_waits_for_proof_of_death() -> None:
    one = instance("a", "unreachable", processes=RUNNING)
    effects = effects_of(one, deleted_at=NOW, hosts=(host(phase="lost"),))
    assert effects.releases == effects.removals == []
    effects = effects_of(one, deleted_at=NOW, hosts=(host(phase="lost", confirmed_dead=True),))
    assert effects.releases
    assert effects.finish


def test_only_what_was_stopping_has_the_duration_of_its_stop() -> None:
    ended = (process("exited", "stopped", 0),)
    (event,) = effects_of(instance("a", "stopping", age_s=7.5, processes=ended), deleted_at=NOW).events
    assert (event.reason, event.evidence["durations"]) == ("removed", {"stopping": 7.5})
    (event,) = effects_of(instance("a", "pending"), deleted_at=NOW).events
    assert (event.reason, event.evidence) == ("removed", {"reason": "deleted"})


def test_the_event_of_a_stop_gives_the_message_or_the_reason() -> None:
    (stops,) = effects_of(running("a"), spec=spec(replicas=0)).events
    assert (stops.reason, stops.message) == ("stopping", "stopping: scaled_down")
    (gone,) = effects_of(instance("a", "pending"), spec=spec(replicas=0)).events
    assert (gone.reason, gone.message) == ("removed", "removed: scaled_down")
    (stops,) = effects_of(running("a"), deleted_at=NOW).events
    assert stops.message == "the deployment was deleted"
    (gone,) = effects_of(instance("a", "pending"), deleted_at=NOW).events
    assert gone.message == "the deployment was deleted"


def test_a_stop_on_a_lost_worker_continues_when_its_fence_is_over() -> None:
    lost = host(phase="lost", fence_until=NOW + timedelta(seconds=9))
    one = instance("a", "stopping", stop_reason="deleted", processes=RUNNING)
    assert effects_of(one, hosts=(lost,), deleted_at=NOW).requeue_after_s == 9
