"""A live instance follows what its agent reports."""

import pytest

from support.builders.facts import instance, process
from support.decisions import effects_of, phases_of


@pytest.mark.parametrize(
    ("phase", "state", "expected"),
    [
        ("scheduled", "starting", ["starting"]),
        ("scheduled", "running", ["starting"]),  # one edge at a time
        ("starting", "starting", []),
        ("starting", "running", ["running"]),
        ("starting", "unhealthy", ["running"]),
        ("running", "running", []),
        ("running", "unhealthy", ["unhealthy"]),
        ("running", "starting", []),  # a late report never goes back
        ("unhealthy", "running", ["running"]),
        ("unhealthy", "unhealthy", []),
        ("running", "stopping", []),
    ],
)
def test_it_follows_the_agents_report(phase, state, expected) -> None:
    assert phases_of(effects_of(instance("a", phase, processes=(process(state),)))) == expected


@pytest.mark.parametrize(
    ("phase", "state", "told"),
    [
        ("starting", "running", ["running"]),
        ("starting", "unhealthy", ["running"]),  # it ran at least for a moment
        ("unhealthy", "running", []),
        ("scheduled", "running", []),  # one edge at a time
    ],
)
def test_the_end_of_a_start_is_told_with_its_durations(phase, state, told) -> None:
    effects = effects_of(instance("a", phase, processes=(process(state),)))
    found = [event for event in effects.events if event.reason == "running"]
    assert [event.reason for event in found] == told
    for event in found:
        assert "instance:a" in event.objects
        assert event.evidence["durations"]["total"] == event.evidence["durations"]["starting"]
