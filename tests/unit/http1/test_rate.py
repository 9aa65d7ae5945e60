"""A budget that fills up again."""

import pytest

from http1.rate import Rate


@pytest.mark.parametrize(("amounts", "wait_s"), [((10,), 0.0), ((10, 1), 0.5), ((30,), 10.0)])
def test_the_rate(amounts: tuple[int, ...], wait_s: float) -> None:
    rate, waits = Rate(0.0, burst=10, per_s=2.0), 0.0
    for amount in amounts:
        waits = rate.take(0.0, amount)
    assert waits == pytest.approx(wait_s)
    assert rate.take(100.0, 10) == 0.0, "it fills up again"
