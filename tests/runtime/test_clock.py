"""Jumps of another clock, detected by ours."""

import math
from datetime import UTC, datetime, timedelta

from controller.reconcilers.workers import ClockJumpWatch
from controller.runtime.clock import JUMP_S

START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


class _Clocks:
    def __init__(self) -> None:
        self.ours = 1000.0
        self.theirs = START
        self.watch = ClockJumpWatch(lambda: self.ours)

    def after(self, ours_s: float, theirs_s: float) -> float:
        self.ours += ours_s
        self.theirs += timedelta(seconds=theirs_s)
        return self.watch.steady_for_s(self.theirs)


def test_a_steady_clock_never_jumped() -> None:
    clocks = _Clocks()
    assert clocks.after(0, 0) == math.inf
    assert clocks.after(20, 20 + JUMP_S - 0.01) == math.inf
    assert clocks.after(20, 20 - JUMP_S + 0.01) == math.inf
    assert clocks.after(86_400, 86_400) == math.inf


def test_after_a_jump_it_is_steady_again() -> None:
    for hour in (3600.0, -3600.0):
        clocks = _Clocks()
        clocks.after(0, 0)
        assert clocks.after(5, 5 + hour) == 0
        assert clocks.after(7, 7) == 7
        assert clocks.after(5, 5 - hour) == 0
        assert clocks.after(1, 1) == 1
