"""Needs that could not be worked out: when they are tried again, and what forgets them."""

from datetime import timedelta

from controller.decide.instances.decide import decide
from controller.decide.instances.need import Finished
from controller.domain.effects import StoreNeed
from controller.domain.instances import NeedError, RevisionFacts
from controller.domain.restarts import RestartSettings
from support.facts import NOW, deployment, instance, intent, spec

SETTINGS = RestartSettings()


def plan_of(*instances, finished=None, **fields):
    return decide(deployment(*instances, **fields), SETTINGS, finished, None)


def test_an_unreachable_source_is_tried_again_and_an_unreadable_one_is_not() -> None:
    waits = instance("a", "analyzing")
    plan = plan_of(waits, need=None, finished=Finished("hash-1", error="no route", retryable=True))
    assert [m.to.value for m in plan.phase_changes] == ["pending"]
    assert plan.phase_changes[0].reason == "metadata_unknown"
    assert plan.requeue_after_s == 10
    plan = plan_of(waits, need=None, finished=Finished("hash-1", error="corrupt", retryable=False))
    assert [m.to.value for m in plan.phase_changes] == ["failed"]


def _with_error(retry_in_s: float | None):
    retry_at = None if retry_in_s is None else NOW + timedelta(seconds=retry_in_s)
    error = NeedError("no route", retry_at is not None, 1, retry_at)
    return {1: RevisionFacts(1, spec(), "hash-1", NOW, need=None, need_error=error)}


def test_the_next_try_comes_in_its_time() -> None:
    waits = instance("a", "pending")
    early = plan_of(waits, revisions=_with_error(4))
    assert (early.analyse, early.requeue_after_s) == (None, 4)
    assert plan_of(waits, revisions=_with_error(-1)).analyse == 1


def test_a_stop_forgets_what_could_not_be_read() -> None:
    failed, unreadable = instance("a", "failed"), _with_error(None)
    stopped = plan_of(failed, revisions=unreadable, intents=(intent(),))
    assert (stopped.store_need, stopped.analyse) == (StoreNeed(1, None, None), None)
    assert plan_of(failed, revisions=unreadable).store_need is None
