"""The number of wanted replicas, and which instances stop when there are more."""

from controller.domain.instances import IntentFacts
from support.builders.facts import NOW, instance, intent, spec
from support.decisions import effects_of, running


def test_surplus_instances_without_claims_stop_first() -> None:
    some = (running("old", age_s=90), running("new", age_s=10), instance("waits", "pending"))
    effects = effects_of(*some, spec=spec(replicas=2))
    assert [r.instance for r in effects.removals] == ["waits"]
    effects = effects_of(*some, spec=spec(replicas=1))
    assert [r.instance for r in effects.removals] == ["waits"]
    assert [s.instance for s in effects.stops] == ["new"]


def test_instances_named_by_an_intent_stop_first() -> None:
    """A policy's idle replica, though another one holds less; where fewer go than are named, the one of least worth."""
    limit = IntentFacts("policy", 2, "policy_idle", ("idle", "gone"))
    some = (running("old", age_s=90), running("idle", age_s=50), running("new", age_s=10))
    (move,) = effects_of(*some, spec=spec(replicas=3), intents=(limit,)).phase_changes
    assert (move.instance, move.stop_reason) == ("idle", "policy_idle")


def test_an_intent_limits_replicas_and_gives_its_reason() -> None:
    effects = effects_of(running("a"), running("b"), spec=spec(replicas=2), intents=(intent(),))
    assert {s.instance for s in effects.stops} == {"a", "b"}
    assert {m.stop_reason for m in effects.phase_changes} == {"stopped"}


def test_a_deleted_instance_without_claims_is_removed_at_once() -> None:
    effects = effects_of(instance("a", "analyzing"), need=None, deleted_at=NOW)
    assert [r.instance for r in effects.removals] == ["a"]
    assert effects.finish
    assert effects.analyse is None
