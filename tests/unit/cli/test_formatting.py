import time
from datetime import UTC, datetime, timedelta

import pytest

from cli.text.formatting import age, duration, first_gpus, gib, hours, percent, printable, when

NOW = datetime(2030, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172799, "47h"), (172800, "2d")],
)
def test_ages_have_one_unit(seconds, text):
    assert age(NOW - timedelta(seconds=seconds), NOW) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0s"), (59.9, "59s"), (60, "1m00s"), (250, "4m10s"), (7500, "2h05m"), (273_600, "3d04h")],
)
def test_durations_have_two_units(seconds, text):
    assert duration(seconds) == text


def test_unknown_values_are_a_dash():
    assert [age(None, NOW), when(None, NOW), gib(None), percent(None), first_gpus([])] == ["-"] * 5


def test_zero_is_zero():
    assert [gib(0), percent(0.0)] == ["0GiB", "0%"]


@pytest.mark.parametrize(("mib", "text"), [(1024, "1GiB"), (1536, "1.5GiB"), (81920, "80GiB"), (1, "0.0GiB")])
def test_sizes(mib, text):
    assert gib(mib) == text.replace("0.0", "0")


def test_times_show_their_distance_from_now():
    assert when(NOW - timedelta(minutes=5), NOW).endswith("(5m ago)")
    assert when(NOW + timedelta(minutes=5), NOW).endswith("(in 5m)")


def test_many_gpus_are_abbreviated():
    names = [f"gpu-a1:{n}" for n in range(8)]
    assert first_gpus(names) == "gpu-a1:0,gpu-a1:1 +6"
    assert first_gpus(names[:2]) == "gpu-a1:0,gpu-a1:1"


def test_control_characters_are_shown_escaped():
    assert printable("a\x1b[2J\nb\x9b") == "a\\x1b[2J b\\x9b"


def test_a_time_is_in_the_readers_zone(monkeypatch):
    monkeypatch.setenv("TZ", "UTC-3")  # POSIX: three hours east
    time.tzset()
    try:
        assert when(datetime(2026, 1, 31, 22, 0, tzinfo=UTC), NOW).startswith("2026-02-01 01:00:00+03:00 (")
    finally:
        monkeypatch.undo()
        time.tzset()


def test_gpu_hours_keep_what_is_small_apart_from_nothing():
    shown = {0: "0.00", 0.004: "<0.01", 0.0051: "0.01", 99.994: "99.99", 12_345.4: "12,345", None: "-"}
    assert {value: hours(value) for value in shown} == shown
