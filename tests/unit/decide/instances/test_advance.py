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
