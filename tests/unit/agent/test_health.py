import pytest

from agent.processes.health import Limits, Vital, observed, progressed, sentence

LIMITS = Limits(failures=3, start_timeout_s=10.0, liveness_timeout_s=60.0)


def _after(answers: str, vital: Vital | None = None) -> Vital:
    """One probe per character and second, beginning at 1: `+` answered, `-` not."""
    vital = vital or Vital(state="starting", progress_s=0.0)
    for second, answer in enumerate(answers, start=1):
        vital = observed(vital, LIMITS, answered=answer == "+", now_s=float(second))
    return vital


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
    vital = _after(answers)
    assert (vital.state, vital.ready) == (state, ready)


def test_unhealthy_is_counted_from_when_it_became_so() -> None:
    vital = _after("+------")
    assert vital.unhealthy_s == 4.0
    assert sentence(vital, LIMITS, 64.0) is None
    assert sentence(vital, LIMITS, 64.1) == "liveness"
    assert sentence(_after("+", vital), LIMITS, 1000.0) is None


def test_the_start_timeout_counts_from_progress_and_only_before_the_first_answer() -> None:
    vital = _after("---")
    assert sentence(vital, LIMITS, 10.0) is None
    assert sentence(vital, LIMITS, 10.1) == "start_timeout"
    assert sentence(progressed(vital, 5.0), LIMITS, 15.0) is None
    assert sentence(_after("+"), LIMITS, 1000.0) is None
