"""The need of the newest revision: its analysis, its errors and their retries."""

from datetime import timedelta

from controller.decide.instances.decide import Finished
from controller.domain.effects import StoreNeed
from controller.domain.instances import Revision
from controller.domain.placement import Need, NeedError, need_error_from_json, need_error_to_json
from support.builders.facts import NOW, instance, intent, spec
from support.decisions import effects_of, phases_of


def test_the_analysis_runs_while_an_instance_needs_it() -> None:
    effects = effects_of(instance("a", "pending"), need=None)
    assert effects.analyse == 1
    assert phases_of(effects) == ["analyzing"]
    again = effects_of(instance("a", "analyzing"), need=None)
    assert again.analyse == 1
    assert again.phase_changes == []
    assert effects_of(instance("a", "analyzing"), need=None, intents=(intent(),)).analyse is None


def test_a_known_need_is_stored_and_wakes_placement() -> None:
    effects = effects_of(need=None, known=Need(memory_mib=1))
    assert effects.store_need is not None
    assert effects.creates
    assert effects.wake_placement
    assert effects.analyse is None


def test_a_finished_analysis_is_stored_if_its_input_matches() -> None:
    waits = instance("a", "analyzing")
    effects = effects_of(waits, need=None, finished=Finished("hash-1", need=Need(memory_mib=5)))
    assert effects.store_need is not None
    assert effects.store_need.need == Need(memory_mib=5)
    assert effects.wake_placement
    assert effects.analyse is None
    stale = effects_of(waits, need=None, finished=Finished("another", need=Need(memory_mib=5)))
    assert stale.store_need is None
    assert stale.analyse == 1


def test_an_unreachable_source_is_retried_and_an_unreadable_one_is_not() -> None:
    waits = instance("a", "analyzing")
    effects = effects_of(waits, need=None, finished=Finished("hash-1", error="no route", retryable=True))
    assert phases_of(effects) == ["pending"]
    assert effects.phase_changes[0].reason == "metadata_unknown"
    assert effects.requeue_after_s == 10
    gated = Finished("hash-1", error="is gated", retryable=True, reason="model_gated")
    effects = effects_of(waits, need=None, finished=gated)
    assert effects.phase_changes[0].reason == "model_gated"
    stored = effects.store_need.error if effects.store_need else None
    assert stored is not None
    assert need_error_from_json(need_error_to_json(stored)) == stored
    before = {name: value for name, value in need_error_to_json(stored).items() if name != "reason"}
    assert need_error_from_json(before).reason == "metadata_unknown", "of a version without the field"
    effects = effects_of(waits, need=None, finished=Finished("hash-1", error="corrupt", retryable=False))
    assert phases_of(effects) == ["failed"]


def _with_error(retry_in_s: float | None):
    retry_at = None if retry_in_s is None else NOW + timedelta(seconds=retry_in_s)
    error = NeedError("no route", retry_at is not None, 1, retry_at)
    return {1: Revision(1, spec(), "hash-1", NOW, need=None, need_error=error)}


def test_the_next_attempt_waits_for_its_time() -> None:
    waits = instance("a", "pending")
    early = effects_of(waits, revisions=_with_error(4))
    assert (early.analyse, early.requeue_after_s) == (None, 4)
    assert effects_of(waits, revisions=_with_error(-1)).analyse == 1


def test_a_stop_forgets_the_analysis_error() -> None:
    failed, unreadable = instance("a", "failed"), _with_error(None)
    stopped = effects_of(failed, revisions=unreadable, intents=(intent(),))
    assert (stopped.store_need, stopped.analyse) == (StoreNeed(1, None, None), None)
    assert effects_of(failed, revisions=unreadable).store_need is None
