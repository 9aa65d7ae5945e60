"""When a container has certainly ended, although Docker does not say so: a table."""

import pytest

from agent.decide.containers import AWAY_S, ERRORS_S, FirstProcess, NoWord, has_ended

AGES = (0.0, AWAY_S, ERRORS_S, 10**6)


@pytest.mark.parametrize(
    ("answers", "process", "signalled", "earlier_boot", "after_s"),
    [
        # While Docker is silent, it may start again and tell the exit code.
        (False, "gone", False, False, AWAY_S),
        (False, "gone", True, False, 0.0),
        # Steady errors.
        (True, "gone", False, False, ERRORS_S),
        (True, "gone", True, False, 0.0),
        # A process of an earlier boot is dead, whatever /proc shows.
        (False, "unknown", False, True, 0.0),
        (True, "unknown", False, True, ERRORS_S),
        # It runs, or that is unknown: never.
        (False, "runs", False, False, None),
        (False, "runs", True, False, None),
        (True, "runs", True, False, None),
        (True, "runs", False, True, None),
        (False, "unknown", False, False, None),
        (False, "unknown", True, False, None),
        (True, "unknown", False, False, None),
        (True, "unknown", True, False, None),
    ],
)
def test_the_end_of_a_container_of_which_docker_says_nothing(
    process: FirstProcess, after_s: float | None, *, answers: bool, signalled: bool, earlier_boot: bool
) -> None:
    for for_s in AGES:
        known = NoWord(answers, process, signalled, earlier_boot, for_s)
        assert has_ended(known) == (after_s is not None and for_s >= after_s), known
