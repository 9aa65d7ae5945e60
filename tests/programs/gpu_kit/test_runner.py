"""The runner goes on after whatever a step does, and leaves what is known as files."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpu_kit.kit import Kit, SkippedError
from gpu_kit.results import Finding, judged
from gpu_kit.runner import Runner, Step


def fails(_: Kit) -> Iterator[Finding]:
    yield judged("before", True)
    raise ValueError("broken")


def hangs(_: Kit) -> Iterator[Finding]:
    yield judged("before", True)
    while True:
        with suppress(Exception):  # a step that catches too much is cut off all the same
            time.sleep(60)


def cannot(_: Kit) -> Iterator[Finding]:
    raise SkippedError("no GPU was read")
    yield


def works(_: Kit) -> Iterator[Finding]:
    yield judged("it works", True)


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(results=tmp_path, work=tmp_path / "work")


def statuses(kit: Kit) -> list[list[tuple[str, str]]]:
    kept = json.loads((kit.results / "results.json").read_text())
    return [[(one["name"], one["status"]) for one in step["findings"]] for step in kept["steps"]]


def test_it_goes_on_after_errors_hangs_and_what_cannot_be_tried(kit: Kit) -> None:
    steps = [Step("fails", 5, fails), Step("hangs", 3, hangs), Step("cannot", 5, cannot), Step("works", 5, works)]
    assert Runner(kit, {"NVML": "none"}, time.monotonic() + 60).run(steps) == 1
    assert statuses(kit) == [
        [("before", "passed"), ("unexpected", "error")],
        [("before", "passed"), ("time", "timed out")],
        [("cannot", "skipped")],
        [("it works", "passed")],
    ]
    assert "broken" in (kit.results / "summary.txt").read_text()


def test_no_step_outlasts_the_whole_and_later_ones_are_skipped(kit: Kit) -> None:
    began = time.monotonic()
    Runner(kit, {}, began + 4).run([Step("hangs", 100, hangs), Step("works", 100, works)])
    assert time.monotonic() - began < 10
    assert statuses(kit)[1] == [("works", "skipped")]


def test_results_are_there_after_each_step(kit: Kit) -> None:
    seen: list[list[list[tuple[str, str]]]] = []

    def looks(kit: Kit) -> Iterator[Finding]:
        seen.append(statuses(kit))
        yield judged("looked", True)

    assert Runner(kit, {}, time.monotonic() + 60).run([Step("works", 5, works), Step("looks", 5, looks)]) == 0
    assert seen == [[[("it works", "passed")]]]
