"""When a container has certainly ended, although Docker does not say so: a table."""

import pytest

from agent.decide.containers import EndEvidence, FirstProcess, has_ended

AGES = (0.0, 9.9, 10.0, 59.9, 60.0, 10**6)


@pytest.mark.parametrize(
    ("answers", "process", "signalled", "earlier_boot", "after_s"),
    [
        # While Docker is silent, it may start again and tell the exit code.
        (False, "gone", False, False, 10.0),
        (False, "gone", True, False, 0.0),
        # Steady errors.
        (True, "gone", False, False, 60.0),
        (True, "gone", True, False, 0.0),
        # A process of an earlier boot is dead, whatever /proc shows.
        (False, "unknown", False, True, 0.0),
        (True, "unknown", False, True, 60.0),
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
        known = EndEvidence(answers, process, signalled, earlier_boot, for_s)
        assert has_ended(known) == (after_s is not None and for_s >= after_s), known


def test_without_further_knowledge_nothing_counts_as_ended() -> None:
    for process in ("runs", "gone", "unknown"):
        for answers in (False, True):
            assert not has_ended(EndEvidence(answers, process))
