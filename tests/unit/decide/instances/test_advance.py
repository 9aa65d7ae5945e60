"""A live instance follows what its agent reports."""

from dataclasses import replace

import pytest

from schemas.wire import PULLING
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


@pytest.mark.parametrize(
    ("phase", "state", "message", "reason"),
    [
        ("running", "unhealthy", "no_answer: 3 requests", "no_answer"),
        ("running", "unhealthy", "no_answer", "probe_failed"),
        ("running", "unhealthy", "HTTP 500", "probe_failed"),
        ("unhealthy", "running", "no_answer: 3 requests", ""),
    ],
)
def test_an_unhealthy_instance_has_the_reason_of_its_probe(phase, state, message, reason) -> None:
    (change,) = effects_of(instance("a", phase, processes=(replace(process(state), message=message),))).phase_changes
    assert (change.reason, change.message) == (reason, message if reason else "")


@pytest.mark.parametrize(("phase", "state"), [("scheduled", "starting"), ("starting", "unhealthy")])
def test_the_next_edge_follows_at_once(phase, state) -> None:
    assert effects_of(instance("a", phase, processes=(process(state),))).requeue_after_s == 0.01


@pytest.mark.parametrize(
    ("state", "message", "before", "progress"),
    [
        ("starting", "downloads 3 of 9 GiB", ("", ""), [("fetching", "downloads 3 of 9 GiB")]),
        ("starting", f"{PULLING} the image", ("", ""), [("pulling", f"{PULLING} the image")]),
        ("starting", "downloads 3 of 9 GiB", ("fetching", "downloads 3 of 9 GiB"), []),
        ("starting", "", ("fetching", "downloads 3 of 9 GiB"), [("", "")]),
        ("starting", "", ("pulling", "pulling the image"), [("", "")]),
        ("starting", "", ("", "its worker is back"), []),
    ],
)
def test_a_start_reports_what_it_waits_for(state, message, before, progress) -> None:
    reason, known = before
    one = instance("a", "starting", reason=reason, message=known, processes=(replace(process(state), message=message),))
    assert [(told.reason, told.message) for told in effects_of(one).progress] == progress
