"""An agent that ends an instance again and again, through no fault of its own: restarts stay few in any length of time.

An instance is stepped through its ends as the leader steps it. Nothing is known but the stamps that the ledger keeps.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from controller.domain.instances import EndedStart, InstanceState
from controller.domain.restart_delays import BLAMELESS, ENDED_REPEATEDLY, ORDERLY, RestartSettings
from support.builders.facts import NOW, host, instance, process
from support.decisions import effects_of, phases_of
from support.profiles import examples

SETTINGS = RestartSettings()
STABLE_S = SETTINGS.stable_after_s
# How long each start lasted, in seconds, and how it ended.
LASTED = st.one_of(st.floats(0, 5), st.floats(0, STABLE_S - 1), st.floats(STABLE_S, 10 * STABLE_S))
ENDS = st.lists(st.tuples(LASTED, st.sampled_from(sorted(BLAMELESS))), min_size=1, max_size=60)


def after_end(runs: list[EndedStart], reason: str, now: datetime) -> tuple[InstanceState, float]:
    """The instance in backoff after the newest of its runs, and how many seconds it stays there."""
    one = instance("a", "running", epoch=len(runs), processes=(process("exited", reason, epoch=len(runs)),))
    one = replace(one, runs=tuple(reversed(runs[-32:])))
    effects = effects_of(one, now=now)
    assert phases_of(effects) == ["backoff"]
    (change,) = effects.phase_changes
    assert change.failures is None
    assert change.not_before is not None
    delay_s = (change.not_before - now).total_seconds()
    assert (change.reason == ENDED_REPEATEDLY) == (delay_s > 0)
    assert effects.requeue_after_s == max(delay_s, 0.01)
    assert [event.reason for event in effects.events] == ["ended"]
    assert effects.events[0].evidence["reason"] == reason
    waits = replace(one, phase=change.to, reason=str(change.reason), not_before=change.not_before)
    return waits, delay_s


@given(ENDS)
@examples()
def test_delays_grow_within_bounds_until_a_stable_run(ends: list[tuple[float, str]]) -> None:
    now, runs, delays = NOW, list[EndedStart](), list[float]()
    in_a_row = 0
    for lasted_s, reason in ends:
        started, now = now, now + timedelta(seconds=lasted_s)
        orderly = reason == ORDERLY
        runs.append(EndedStart(started, now, orderly))
        _, delay_s = after_end(runs, reason, now)
        in_a_row = 0 if lasted_s >= STABLE_S else in_a_row + (not orderly)
        if in_a_row <= SETTINGS.blameless_at_once or orderly:
            assert delay_s == 0  # the first ones, those after a stable run, and orderly ones restart it at once
        else:
            assert SETTINGS.base_s <= delay_s <= SETTINGS.cap_s
            assert delay_s == min(SETTINGS.cap_s, max(SETTINGS.base_s, 2 * delays[-1]))
        if not orderly:
            delays.append(delay_s)
        now += timedelta(seconds=delay_s)


@given(st.lists(st.floats(0, 0.1), min_size=60, max_size=90))
@examples()
def test_restarts_in_an_hour_are_few_however_fast_it_is_ended(lasting: list[float]) -> None:
    now, runs = NOW, list[EndedStart]()
    for lasted_s in lasting:
        started, now = now, now + timedelta(seconds=lasted_s)
        runs.append(EndedStart(started, now))
        _, delay_s = after_end(runs, "gone", now)
        now += timedelta(seconds=delay_s)
    begins = [run.started for run in runs]
    most = max(sum(begin <= other < begin + timedelta(hours=1) for other in begins) for begin in begins)
    assert most <= SETTINGS.blameless_at_once + 5 + 3600 / SETTINGS.cap_s


@given(st.integers(4, 40), st.floats(0.1, 400), st.sampled_from(["ready", "unreachable", "lost"]))
@examples()
def test_a_delay_lasts_wherever_its_worker_goes(ends: int, waited_s: float, phase: str) -> None:
    """An agent that falls silent after each end evades no delay, and one that a clock made too long is dropped."""
    runs = [EndedStart(NOW - timedelta(seconds=n), NOW - timedelta(seconds=n)) for n in range(ends, 0, -1)]
    waits, delay_s = after_end(runs, "gone", NOW)
    effects = effects_of(waits, hosts=(host(phase=phase),), now=NOW + timedelta(seconds=waited_s))
    left_s = delay_s - waited_s
    if phase == "ready":
        assert phases_of(effects) == []
        assert bool(effects.restarts) == (left_s <= 0)
    else:
        assert phases_of(effects) == ["pending"]
        assert effects.phase_changes[0].not_before == (waits.not_before if left_s > 0 else None)
    earlier = effects_of(waits, hosts=(host(phase=phase),), now=NOW - timedelta(seconds=SETTINGS.cap_s + 1))
    assert all(change.not_before is None for change in earlier.phase_changes)
