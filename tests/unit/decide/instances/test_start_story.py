"""How long each phase of a start took, as `running` tells it."""

from datetime import UTC, datetime, timedelta

import pytest

from controller.decide.instances.advance import start_durations, story
from controller.domain.instances import InstanceState
from controller.domain.phases import InstancePhase as P

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


def instance(phase: P, reason: str = "", since_s: float = 5.0, **spent: float) -> InstanceState:
    since = NOW - timedelta(seconds=since_s)
    return InstanceState(
        id="d-1", revision=1, phase=phase, phase_since=NOW - timedelta(hours=1), reason=reason, message="", epoch=1,
        restarts=0, failures=0, not_before=None, stop_reason=None, replaces=None, created_at=NOW, start_phases=spent,
        start_phase_since=since,
    )  # fmt: skip


def test_the_present_phase_counts_up_to_now() -> None:
    one = instance(P.STARTING, scheduled=0.25, pending=1.5, starting=2.0)
    assert start_durations(one, NOW) == {"pending": 1.5, "scheduled": 0.25, "starting": 7.0, "total": 8.75}


def test_what_is_fetched_at_last_counts_as_such() -> None:
    assert start_durations(instance(P.STARTING, "fetching"), NOW) == {"fetching": 5.0, "total": 5.0}


def test_a_clock_that_was_set_back_takes_nothing_away() -> None:
    assert start_durations(instance(P.STARTING, since_s=-9.0), NOW) == {"starting": 0.0, "total": 0.0}


@pytest.mark.parametrize(
    ("durations", "words"),
    [
        ({"pending": 0.01, "starting": 3.21, "total": 3.22}, "d-1 runs after 3.2s: starting 3.2s"),
        (
            {"analyzing": 2.0, "fetching": 125.4, "starting": 30.0, "total": 157.4},
            "d-1 runs after 2m37s: analyzing 2.0s, fetching 2m05s, starting 30s",
        ),
        ({"starting": 0.0, "total": 0.0}, "d-1 runs after 0.0s"),
        ({"pending": 9.94, "starting": 10.4, "total": 20.34}, "d-1 runs after 20s: pending 9.9s, starting 10s"),
    ],
)
def test_words(durations: dict[str, float], words: str) -> None:
    assert story("d-1", durations) == words


def test_durations_have_milliseconds() -> None:
    told = start_durations(instance(P.STARTING, since_s=1.23456, pending=2.34567), NOW)
    assert told == {"pending": 2.346, "starting": 1.235, "total": 3.58}
