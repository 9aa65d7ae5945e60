"""Evicted tasks: done if they end with code 0 within their time to stop, and never two copies at once."""

from dataclasses import replace
from typing import Any

import pytest

from controller.domain.instances import InstanceState
from support.builders.facts import NOW, host, instance, process, spec
from support.decisions import RUNNING, effects_of, phases_of

TASK = {"engine": "custom", "command": ["sh", "-c", "work"]}
SERVER = {"engine": "custom", "command": ["serve", "{port}"]}
REASONS = ("drained", "preempted", "gpu_lost")


def stopping(code: int | None, reason: str = "drained", **fields: Any) -> InstanceState:
    state = process("running") if code is None else process("exited", "stopped", code)
    return instance("a", "stopping", stop_reason=reason, processes=(state,), **fields)


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("restart", ["never", "on_failure"])
def test_a_task_that_ends_with_zero_within_its_stop_is_done(restart: str, reason: str) -> None:
    given = spec(**TASK, restart=restart)
    effects = effects_of(stopping(0, reason), spec=given, hosts=(host(draining=True),))
    assert phases_of(effects) == ["succeeded"]
    assert (effects.creates, effects.removals) == ([], [])
    assert effects.releases
    after = effects_of(instance("a", "succeeded", preempted_for="b"), spec=given, hosts=(host(draining=True),))
    assert (after.creates, after.removals, after.stops) == ([], [], [])


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("code", [-15, -9, 1, 143])
@pytest.mark.parametrize("restart", ["never", "on_failure"])
def test_a_task_that_was_cut_short_runs_again_after_its_end(restart: str, code: int, reason: str) -> None:
    given = spec(**TASK, restart=restart)
    waits = effects_of(stopping(None, reason), spec=given, hosts=(host(draining=True),))
    assert (waits.creates, waits.removals) == ([], []), "two copies would work at once"
    effects = effects_of(stopping(code, reason), spec=given, hosts=(host(draining=True),))
    assert [removal.instance for removal in effects.removals] == ["a"]
    assert len(effects.creates) == 1


def test_an_eviction_of_a_task_creates_its_successor_later() -> None:
    running = instance("a", "running", processes=RUNNING)
    effects = effects_of(running, spec=spec(**TASK, restart="on_failure"), hosts=(host(draining=True),))
    assert [stop.reason for stop in effects.stops] == ["drained"]
    assert effects.creates == []


def test_a_preempted_task_keeps_its_queue_time() -> None:
    born = NOW.replace(year=2020)
    one = replace(stopping(-15, "preempted", preempted_for="b"), created_at=born)
    (create,) = effects_of(one, spec=spec(**TASK, restart="never")).creates
    assert (create.replaces, create.born) == ("a", born)


@pytest.mark.parametrize("restart", ["always", "on_failure"])
def test_a_server_that_heeds_sigterm_is_started_elsewhere_at_once(restart: str) -> None:
    given = spec(**SERVER, restart=restart)
    effects = effects_of(instance("a", "running", processes=RUNNING), spec=given, hosts=(host(draining=True),))
    assert len(effects.creates) == 1
    ended = effects_of(stopping(0), spec=given, hosts=(host(draining=True),))
    assert phases_of(ended) == []
    assert [removal.instance for removal in ended.removals] == ["a"]


@pytest.mark.parametrize("reason", ["deleted", "new_revision", "scaled_down"])
def test_what_is_not_wanted_any_more_just_goes(reason: str) -> None:
    fields = {"deleted_at": NOW} if reason == "deleted" else {}
    effects = effects_of(stopping(0, reason), spec=spec(**TASK, restart="never"), **fields)
    assert [removal.instance for removal in effects.removals] == ["a"]


@pytest.mark.parametrize(("codes", "done"), [((0, 0), True), ((0, -15), False), ((-15, 0), False), ((0, None), False)])
def test_a_gang_is_done_when_all_of_its_ranks_are(codes: tuple[int | None, int | None], done: bool) -> None:
    processes = [
        replace(process("running") if code is None else process("exited", "stopped", code), rank=rank)
        for rank, code in enumerate(codes)
    ]
    (claim, *_) = instance("a", "running").claims
    claims = tuple(replace(claim, device=f"GPU-{rank}", rank=rank) for rank in range(2))
    one = instance("a", "stopping", stop_reason="drained", processes=tuple(processes), claims=claims)
    effects = effects_of(one, spec=spec(**TASK, restart="never"), hosts=(host(draining=True),))
    assert (phases_of(effects) == ["succeeded"]) == done


@pytest.mark.parametrize("reason", ["agent_stopped", "disconnected"])
@pytest.mark.parametrize("restart", ["never", "on_failure"])
@pytest.mark.parametrize("draining", [True, False])
def test_a_task_that_ends_with_zero_as_its_agent_stops_it_is_done(restart: str, reason: str, draining: bool) -> None:
    one = instance("a", "running", processes=(process("exited", reason, 0),))
    effects = effects_of(one, spec=spec(**TASK, restart=restart), hosts=(host(draining=draining),))
    assert phases_of(effects) == ["succeeded"]
    assert (effects.creates, effects.removals) == ([], [])


@pytest.mark.parametrize("reason", REASONS)
def test_the_event_of_a_done_task_has_the_reason_of_its_stop(reason: str) -> None:
    effects = effects_of(stopping(0, reason), spec=spec(**TASK, restart="never"), hosts=(host(draining=True),))
    (event,) = effects.events
    assert (event.reason, event.objects) == ("succeeded", ("instance:a",))
    assert event.evidence == {"exit_code": 0, "reason": reason}


def test_a_task_that_failed_before_its_end_is_not_done_whatever_its_code() -> None:
    """A program that heeds the stop of its agent may exit with code 0, though it had not started in time."""
    ended = process("exited", "start_timeout", 0)
    effects = effects_of(instance("a", "starting", processes=(ended,)), spec=spec(**TASK, restart="never"))
    assert phases_of(effects) == ["failed"]
