from dataclasses import replace

import pytest

from agent.decide.health import HealthLimits, ProcessHealth, after_probe, kill_reason

LIMITS = HealthLimits(failures=3, start_timeout_s=10.0, liveness_timeout_s=60.0)


def _after(answers: str, health: ProcessHealth | None = None) -> ProcessHealth:
    """One probe per character and second, from second 1: `+` answered, `-` not."""
    health = health or ProcessHealth(state="starting", progress_s=0.0)
    for second, answer in enumerate(answers, start=1):
        health = after_probe(health, LIMITS, answered=answer == "+", now_s=float(second))
    return health


@pytest.mark.parametrize(
    ("answers", "state", "ready"),
    [
        ("", "starting", False),
        ("-----", "starting", False),
        ("+", "running", True),
        ("+--", "running", True),
        ("+---", "unhealthy", True),
        ("+--+--", "running", True),
        ("+----+", "running", True),
    ],
)
def test_states(answers: str, state: str, ready: bool) -> None:
    health = _after(answers)
    assert (health.state, health.ready) == (state, ready)


def test_the_liveness_timeout_counts_from_the_first_unhealthy_probe() -> None:
    health = _after("+------")
    assert health.unhealthy_s == 4.0
    assert kill_reason(health, LIMITS, 64.0) is None
    assert kill_reason(health, LIMITS, 64.1) == "liveness"
    assert kill_reason(_after("+", health), LIMITS, 1000.0) is None


def test_the_start_timeout_counts_from_progress_and_only_before_the_first_answer() -> None:
    health = _after("---")
    assert kill_reason(health, LIMITS, 10.0) is None
    assert kill_reason(health, LIMITS, 10.1) == "start_timeout"
    assert kill_reason(replace(health, progress_s=5.0), LIMITS, 15.0) is None
    assert kill_reason(_after("+"), LIMITS, 1000.0) is None


@pytest.mark.parametrize(
    ("spawned_s", "now_s", "ready", "killed"),
    [
        (0.0, 120.0, False, False),
        (0.0, 120.1, False, True),
        (500.0, 620.0, False, False),  # what was fetched before it was spawned does not count
        (500.0, 620.1, False, True),
        (0.0, 9999.0, True, False),
        (None, 9999.0, False, False),
    ],
)
def test_lines_of_its_log_alone_are_progress_for_twelve_start_timeouts(
    spawned_s: float | None, now_s: float, ready: bool, killed: bool
) -> None:
    health = ProcessHealth(state="starting", progress_s=now_s, ready=ready, spawned_s=spawned_s)
    assert (kill_reason(health, LIMITS, now_s) == "start_timeout") is killed
