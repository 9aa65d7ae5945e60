"""Workers' phases, case by case and exactly at the limits."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controller.decide.worker_phases import decide
from controller.domain.phases import WorkerPhase
from controller.domain.workers import WorkerEffects, WorkerSettings, WorkersSnapshot, WorkerState

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=1)
W = WorkerPhase
A_MOMENT = 0.001


def worker(name: str = "w", phase: str = "ready", *, age_s: float | None = 1.0, **fields: Any) -> WorkerState:
    """Seen `age_s` seconds ago, connected, with a full report."""
    base = WorkerState(
        id=name,
        name=name,
        phase=WorkerPhase(phase),
        reason="",
        session=3,
        reported=True,
        connected=True,
        clean=False,
        last_seen=None if age_s is None else NOW - timedelta(seconds=age_s),
        confirmed_dead=False,
        highest_term=1,
        stops_within_s=None,
    )
    return replace(base, **fields)


def plan(*workers: WorkerState, leader_s: float = 86_400, healthy_s: float = 86_400, term: int = 1) -> WorkerEffects:
    snapshot = WorkersSnapshot(NOW, term, NOW - timedelta(seconds=leader_s), workers)
    return decide(snapshot, NOW - timedelta(seconds=healthy_s), WorkerSettings())


def outcome(*workers: WorkerState, **given: Any) -> dict[str, tuple[str, str]]:
    """The phase and reason of each changed worker."""
    return {c.name: (c.new.value, c.reason) for c in plan(*workers, **given).changes}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(worker(phase="joining"), ("ready", ""), id="the first full report makes ready"),
        pytest.param(worker(phase="joining", reported=False, age_s=None, connected=False), None, id="never connected"),
        pytest.param(worker(phase="joining", reported=False, age_s=99), None, id="no full report yet"),
        pytest.param(worker(phase="joining", connected=False, age_s=1), None, id="reported, then dropped a moment ago"),
        pytest.param(
            worker(phase="joining", connected=False, age_s=5), ("unreachable", "disconnected"), id="dropped for good"
        ),
        pytest.param(worker(), None, id="heard"),
        pytest.param(worker(age_s=15 - A_MOMENT), None, id="just within the limit"),
        pytest.param(worker(age_s=15), ("unreachable", "silent"), id="exactly at the limit"),
        pytest.param(worker(age_s=5 - A_MOMENT, connected=False), None, id="dropped, just within"),
        pytest.param(worker(age_s=5, connected=False), ("unreachable", "disconnected"), id="a drop shortens it"),
        pytest.param(worker(age_s=0, connected=False, clean=True), ("unreachable", "agent_stopped"), id="a goodbye"),
        pytest.param(worker(age_s=0, clean=True), ("unreachable", "agent_stopped"), id="it shuts down"),
        pytest.param(
            worker(phase="unreachable", age_s=0, clean=True, reason="agent_stopped"), None, id="it still does"
        ),
        pytest.param(worker(phase="unreachable", age_s=60 - A_MOMENT, reason="silent"), None, id="not yet lost"),
        pytest.param(worker(phase="unreachable", age_s=60, reason="silent"), ("lost", "silent"), id="lost"),
        pytest.param(worker(age_s=3600), ("unreachable", "silent"), id="one phase after the other"),
        pytest.param(worker(phase="unreachable", age_s=2, reason="silent"), ("ready", ""), id="back"),
        pytest.param(worker(phase="lost", age_s=2, reason="silent"), ("ready", ""), id="back from lost"),
        pytest.param(worker(phase="lost", age_s=3600, reason="silent"), None, id="lost stays lost"),
        pytest.param(
            worker(phase="unreachable", age_s=2, connected=False, reason="disconnected"), None, id="gone again"
        ),
        pytest.param(worker(highest_term=2), ("unreachable", "term_ahead"), id="it would refuse our orders"),
        pytest.param(worker(phase="joining", highest_term=2), ("joining", "term_ahead"), id="likewise at its first"),
        pytest.param(worker(phase="lost", highest_term=2), ("lost", "term_ahead"), id="likewise when it returns"),
        pytest.param(
            worker(phase="unreachable", reason="term_ahead", highest_term=1), ("ready", ""), id="terms have caught up"
        ),
        pytest.param(
            worker(confirmed_dead=True, age_s=1, connected=False), ("unreachable", "confirmed_dead"), id="the word"
        ),
        pytest.param(
            worker(phase="unreachable", confirmed_dead=True, age_s=1, connected=False),
            ("lost", "confirmed_dead"),
            id="the operator's word needs no wait",
        ),
        pytest.param(worker(confirmed_dead=True), None, id="said to be dead, but speaks"),
    ],
)
def test_phases(before: WorkerState, after: tuple[str, str] | None) -> None:
    assert outcome(before).get("w") == after


@pytest.mark.parametrize("given", [{"leader_s": 2}, {"healthy_s": 2}])
def test_an_outage_of_the_controller_is_not_a_workers_silence(given: dict[str, float]) -> None:
    assert outcome(worker(age_s=600), **given) == {}
    assert outcome(worker(phase="unreachable", age_s=600, reason="silent"), **given) == {}
    assert outcome(worker(age_s=600), **dict.fromkeys(given, 15.0)) == {"w": ("unreachable", "silent")}


def test_a_new_leader_does_not_take_old_messages_for_a_return() -> None:
    """The row still says connected, as the crashed hub left it; that alone makes no worker ready."""
    assert outcome(worker(phase="unreachable", age_s=600, reason="silent"), leader_s=1) == {}
    assert outcome(worker(phase="lost", age_s=600, reason="silent"), leader_s=1) == {}
    assert outcome(worker(phase="joining", age_s=600), leader_s=1) == {}


@pytest.mark.parametrize(
    ("stops_within_s", "fence"),
    [(None, None), (0.0, 45 - 61), (90.0, 90 + 45 - 61)],
)
def test_the_fence_counts_from_the_last_message(stops_within_s: float | None, fence: float | None) -> None:
    (change,) = plan(worker(phase="unreachable", age_s=61, stops_within_s=stops_within_s)).changes
    assert change.new is W.LOST
    assert change.fence_until == (None if fence is None else NOW + timedelta(seconds=fence))


def test_a_confirmed_death_fences_at_once_and_a_return_has_no_fence() -> None:
    (dead,) = plan(worker(phase="unreachable", age_s=9, connected=False, confirmed_dead=True)).changes
    assert dead.fence_until == NOW
    (back,) = plan(worker(phase="lost", stops_within_s=1.0)).changes
    assert back.fence_until is None
    (ahead,) = plan(worker(phase="lost", stops_within_s=1.0, highest_term=2)).changes
    assert (ahead.new, ahead.fence_until) == (W.LOST, None)


def silent(n: int, phase: str = "unreachable", reason: str = "silent", start: int = 0) -> list[WorkerState]:
    return [worker(f"s{start + k}", phase, age_s=100, reason=reason) for k in range(n)]


def well(n: int) -> list[WorkerState]:
    return [worker(f"w{k}") for k in range(n)]


@pytest.mark.parametrize(
    ("workers", "opens"),
    [
        pytest.param([*silent(1)], False, id="one alone is one that died"),
        pytest.param([*silent(1), *well(1)], False, id="one of two likewise"),
        pytest.param([*silent(2), *well(4)], False, id="exactly a third is not more"),
        pytest.param([*silent(2), *well(3)], True, id="two of five"),
        pytest.param([*silent(3), *well(6)], False, id="three of nine"),
        pytest.param([*silent(4), *well(6)], True, id="four of ten"),
        pytest.param([*silent(2, "ready"), *well(1)], True, id="silent for the first time"),
        pytest.param([*silent(2, "lost"), *well(1)], False, id="lost long ago is not silent now"),
        pytest.param([*silent(1), *silent(2, "lost", start=5), *well(1)], False, id="one beside lost ones"),
        pytest.param(
            [*silent(2), *well(3), *[worker(f"j{k}", "joining", age_s=None, reported=False) for k in range(9)]],
            True,
            id="those that join do not count",
        ),
        pytest.param([replace(w, clean=True, connected=False) for w in silent(3)], False, id="goodbyes are no riddle"),
        pytest.param([replace(w, clean=True) for w in silent(3)], False, id="nor are agents that shut down"),
        pytest.param([*[replace(w, confirmed_dead=True) for w in silent(3)], *well(1)], False, id="declared dead"),
    ],
)
def test_the_breaker_opens_above_a_third_and_two(workers: list[WorkerState], opens: bool) -> None:
    made = plan(*workers)
    assert made.breaker_open is opens
    assert any(change.new is W.LOST for change in made.changes) is (
        not opens and any(w.phase is W.UNREACHABLE for w in workers)
    )
    if opens:
        assert {c.reason for c in made.changes} == {"breaker_open"}


@pytest.mark.parametrize(
    ("silent_n", "well_n", "stays"),
    [(2, 4, True), (2, 5, False), (1, 1, False), (3, 6, True), (3, 7, False)],
    ids=["exactly a third is not under", "under a third", "one alone", "three of nine", "three of ten"],
)
def test_an_open_breaker_closes_under_a_third(silent_n: int, well_n: int, stays: bool) -> None:
    made = plan(*silent(silent_n, reason="breaker_open"), *well(well_n))
    assert made.breaker_was_open
    assert made.breaker_open is stays
    assert {c.new for c in made.changes} == (set() if stays else {W.LOST})


def test_a_cleanly_stopped_worker_is_not_lost_while_the_breaker_is_open() -> None:
    made = plan(*silent(3), replace(worker("bye", "unreachable", age_s=100), clean=True, connected=False))
    assert made.breaker_open
    assert {c.name: c.reason for c in made.changes if c.name == "bye"} == {"bye": "agent_stopped"}


def test_confirming_workers_dead_closes_the_breaker() -> None:
    workers = silent(3, reason="breaker_open")
    assert plan(*workers, *well(4)).breaker_open
    made = plan(*[replace(w, confirmed_dead=True) for w in workers[:2]], workers[2], *well(4))
    assert not made.breaker_open
    assert {c.new for c in made.changes} == {W.LOST}


@pytest.mark.parametrize(
    ("workers", "requeue_after_s"),
    [
        ([worker(age_s=4)], 11.0),
        ([worker(age_s=4), worker("x", age_s=9)], 6.0),
        ([worker(age_s=2, connected=False)], 3.0),
        ([worker(phase="unreachable", age_s=20, reason="silent")], 40.0),
        ([worker(phase="joining", age_s=None, reported=False)], None),
        ([worker(phase="lost", age_s=900, reason="silent")], None),
        ([worker(phase="lost", age_s=1)], 14.0),
        (silent(2), None),
        ([worker(confirmed_dead=True, age_s=1, connected=False)], 0.0),
        ([], None),
    ],
)
def test_it_is_requeued_when_time_alone_changes_something(
    workers: list[WorkerState], requeue_after_s: float | None
) -> None:
    assert plan(*workers).requeue_after_s == requeue_after_s


def test_the_requeued_step_changes_something() -> None:
    """Neither too early nor too late, whatever the age."""
    for age_s in (0.0, 3.3, 14.9, 15.0, 42.0, 59.0):
        for phase in ("ready", "unreachable"):
            before = worker(phase=phase, age_s=age_s, reason="" if phase == "ready" else "silent")
            made = plan(before)
            if made.changes:
                continue
            assert made.requeue_after_s is not None
            assert before.last_seen is not None
            later = replace(before, last_seen=before.last_seen - timedelta(seconds=made.requeue_after_s))
            assert plan(later).changes, (phase, age_s)


def settling(*workers: WorkerState, led_s: float) -> WorkerEffects:
    """The ledger is known to have lost commits; an agent that reported at `NOW` or later has told what runs."""
    snapshot = WorkersSnapshot(NOW, 1, NOW - timedelta(seconds=led_s), workers, cut_at=NOW - timedelta(seconds=60))
    return decide(snapshot, LONG_AGO, WorkerSettings())


TOLD, UNTOLD = {"reported_at": NOW}, {"reported_at": LONG_AGO}


@pytest.mark.parametrize(
    ("workers", "led_s", "settles"),
    [
        pytest.param([worker(**TOLD), worker("v", **UNTOLD)], 1.0, False, id="one has yet to tell"),
        pytest.param([worker(**TOLD), worker("v", **UNTOLD)], 0.0, False, id="from the start of the term on"),
        pytest.param([worker(**TOLD), worker("v", **UNTOLD)], 14.9, False, id="until it had the time"),
        pytest.param([worker(**TOLD), worker("v", **UNTOLD)], -1.0, True, id="the clock was set back"),
        pytest.param([worker(**TOLD), worker("v", **TOLD)], 1.0, True, id="all have told"),
        pytest.param([worker(**TOLD), worker("v", **UNTOLD)], 15.0, True, id="it had the time"),
        pytest.param([worker(**TOLD), worker("v", phase="lost", **UNTOLD)], 1.0, True, id="a lost one is not awaited"),
        pytest.param([worker(phase="joining", reported=False)], 1.0, True, id="nor one that never reported"),
        pytest.param([], 1.0, True, id="there are none"),
    ],
)
def test_after_a_loss_of_commits_agents_tell_first(workers: list[WorkerState], led_s: float, settles: bool) -> None:
    effects = settling(*workers, led_s=led_s)
    assert (effects.unsettled, effects.settles) == (True, settles)
    assert settles or (effects.requeue_after_s is not None and effects.requeue_after_s <= 1.0)


def test_only_a_lost_worker_has_a_fence() -> None:
    (change,) = plan(worker(age_s=15, stops_within_s=1.0)).changes
    assert (change.new, change.fence_until) == (W.UNREACHABLE, None)


def test_a_term_that_begins_now_forgives_all_silence() -> None:
    assert outcome(worker(age_s=600), leader_s=0) == {}
    assert outcome(worker(age_s=600), leader_s=-9) == {"w": ("unreachable", "silent")}, "the clock was set back"


@pytest.mark.parametrize(
    ("fields", "change", "requeue_after_s"),
    [
        ({"quarantine": "two_identities", "quarantined_for_s": 7.0}, ("unreachable", "two_identities"), 7),
        ({"quarantine": "two_identities", "quarantined_for_s": 70.0}, ("unreachable", "two_identities"), 14),
        ({"quarantine": "two_identities", "quarantined_for_s": 70.0, "age_s": 15}, ("unreachable", "silent"), 45),
        (
            {"quarantine": "two_identities", "quarantined_for_s": 7.0, "highest_term": 2},
            ("unreachable", "term_ahead"),
            7,
        ),
    ],
)
def test_a_quarantined_worker_is_held_back(
    fields: dict[str, Any], change: tuple[str, str], requeue_after_s: float
) -> None:
    made = plan(worker(**fields))
    assert [(one.new.value, one.reason) for one in made.changes] == [change]
    assert made.requeue_after_s == requeue_after_s


def test_a_change_has_its_evidence() -> None:
    (change,) = plan(worker(age_s=15.04)).changes
    assert change.evidence == {"silence_s": 15.0, "connected": True, "session": 3}
    assert (change.session, change.old, change.last_seen) == (3, W.READY, NOW - timedelta(seconds=15.04))
