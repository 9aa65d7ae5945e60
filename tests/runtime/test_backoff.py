"""Delays after failures: they double up to a maximum, with full jitter."""

import random

import pytest

from controller.runtime.outcome import Backoff


class Highest(random.Random):
    def uniform(self, a: float, b: float) -> float:  # noqa: ARG002 - the signature is the standard library's
        return b


def test_the_steps_double_up_to_the_maximum() -> None:
    backoff = Backoff(base_s=1.0, max_s=10.0)
    assert [backoff.delay_s(attempt, Highest()) for attempt in (1, 2, 3, 4, 5, 10_000)] == [1, 2, 4, 8, 10, 10]


def test_the_jitter_is_full() -> None:
    rng = random.Random(1)  # noqa: S311 - reproducible
    delays = [Backoff(base_s=8.0, max_s=8.0).delay_s(1, rng) for _ in range(500)]
    assert min(delays) < 0.5
    assert max(delays) > 7.5


@pytest.mark.parametrize(("base_s", "max_s"), [(0.0, 1.0), (2.0, 1.0), (-1.0, 1.0)])
def test_invalid_arguments_are_refused(base_s: float, max_s: float) -> None:
    with pytest.raises(ValueError, match="base_s"):
        Backoff(base_s=base_s, max_s=max_s)
