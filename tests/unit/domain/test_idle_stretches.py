"""Wasted minutes as stretches."""

from datetime import UTC, datetime, timedelta

from controller.domain.telemetry.history import Stretch, WastedMinute, stretches_of

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return T0 + timedelta(minutes=minutes)


def test_minutes_without_a_gap_are_one_stretch() -> None:
    minutes = [WastedMinute(at(n), gpus, 30.0) for n, gpus in ((0, 1), (1, 3), (2, 2), (4, 1), (6, 1), (7, 1))]
    assert stretches_of(minutes, at(-5), at(20)) == [
        Stretch(at(0), at(3), 3, 90.0),
        Stretch(at(4), at(5), 1, 30.0),
        Stretch(at(6), at(8), 1, 60.0),
    ]


def test_stretches_are_cut_to_what_is_looked_at() -> None:
    minutes = [WastedMinute(at(n), 1, 60.0) for n in range(3)]
    assert stretches_of(minutes, at(0.5), at(2.5)) == [Stretch(at(0.5), at(2.5), 1, 180.0)]
    assert stretches_of([], at(0), at(1)) == []
