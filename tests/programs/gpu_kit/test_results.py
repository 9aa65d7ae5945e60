"""What a check reports: nothing that failed is hidden, and nothing that was not tried counts as well."""

import json
import math

import pytest

from gpu_kit import judge
from gpu_kit.results import BAD, Finding, Status, StepResult, as_json, exit_code, judged, noted, skipped, summary


def step(*statuses: Status) -> StepResult:
    return StepResult("one", 10, 1.5, [Finding(f"f{n}", status) for n, status in enumerate(statuses)])


@pytest.mark.parametrize(
    ("statuses", "whole"),
    [
        ([Status.PASSED, Status.NOTED], Status.PASSED),
        ([Status.PASSED, Status.SKIPPED], Status.PASSED),
        ([Status.SKIPPED], Status.SKIPPED),
        ([Status.PASSED, Status.FAILED, Status.SKIPPED], Status.FAILED),
        ([Status.FAILED, Status.TIMED_OUT], Status.TIMED_OUT),
        ([Status.TIMED_OUT, Status.ERROR], Status.ERROR),
    ],
)
def test_a_step_is_as_its_worst_finding(statuses: list[Status], whole: Status) -> None:
    assert step(*statuses).status is whole
    assert exit_code([step(Status.PASSED), step(*statuses)]) == int(whole in BAD)


def test_the_summary_has_each_finding_and_the_details_of_failures() -> None:
    failed = Finding("bad", Status.FAILED, "why", {"mib": 12.0}, detail="Traceback ...")
    steps = [StepResult("first", 10, 1, [judged("good", True, mib=3), failed]), StepResult("second", 5, 0)]
    steps[1].findings.append(skipped("third", "no CUDA"))
    text = summary(steps, {"Gpuward": "1.0"})
    for part in (
        "Gpuward: 1.0",
        "good",
        "bad",
        "why; mib=12",
        "Traceback ...",
        "skipped: no CUDA",
        "1 failed, 1 passed",
    ):
        assert part in text
    kept = json.loads(json.dumps(as_json(steps, {"Gpuward": "1.0"})))
    assert (kept["failed"], kept["counts"]) == (True, {"failed": 1, "passed": 1, "skipped": 1})
    assert [one["status"] for one in kept["steps"]] == ["failed", "skipped"]
    assert kept["steps"][0]["findings"][1]["figures"] == {"mib": 12.0}


@pytest.mark.parametrize(
    ("values", "share", "is_"), [([1.0], 0.99, 1.0), ([3, 1, 2], 0.5, 2), (range(1, 101), 0.99, 99), ([5, 6], 1.0, 6)]
)
def test_percentiles(values: list[float], share: float, is_: float) -> None:
    assert judge.percentile(values, share) == is_


def test_a_percentile_of_nothing_is_unknown_and_no_sample_passes() -> None:
    assert math.isnan(judge.percentile([], 0.5))
    assert judge.sample_cost("none", []).status is Status.FAILED


@pytest.mark.parametrize(
    ("measured", "cuda", "status"),
    [
        (1000.0, True, Status.PASSED),
        (1100.0, True, Status.PASSED),
        (1130.0, True, Status.FAILED),
        (900.0, True, Status.FAILED),
        (None, True, Status.FAILED),
        (0.0, True, Status.FAILED),
        (10.0, False, Status.SKIPPED),
    ],
)
def test_an_estimate_is_within_a_tenth_of_what_nvml_shows(measured: float | None, cuda: bool, status: Status) -> None:
    assert judge.estimate("one", 1000, measured, cuda=cuda).status is status


@pytest.mark.parametrize(
    ("duty", "percents", "status"),
    [
        (50, [45, 52, 60], Status.PASSED),
        (0, [0, 0], Status.PASSED),
        (10, [100, 100], Status.FAILED),
        (100, [80, 80], Status.FAILED),
        (0, [], Status.FAILED),
    ],
)
def test_utilization_follows_what_was_burnt(duty: float, percents: list[float], status: Status) -> None:
    assert judge.utilization("one", duty, percents, []).status is status


@pytest.mark.parametrize(
    ("stopped_s", "status"),
    [
        (None, Status.FAILED),
        (129.0, Status.FAILED),
        (130.0, Status.PASSED),
        (138.0, Status.PASSED),
        (139.0, Status.FAILED),
    ],
)
def test_an_idle_stop_is_neither_early_nor_late(stopped_s: float | None, status: Status) -> None:
    assert judge.idle_stop("one", judge.Stop(100.0, stopped_s, 30.0, 8.0)).status is status


@pytest.mark.parametrize(
    ("listed_s", "gone_s", "status"),
    [
        (10.0, 11.0, Status.PASSED),
        (11.0, 10.0, Status.FAILED),
        (None, 10.0, Status.FAILED),
        (10.0, None, Status.FAILED),
    ],
)
def test_memory_is_back_before_the_claim_goes(listed_s: float | None, gone_s: float | None, status: Status) -> None:
    assert judge.memory_first("one", listed_s, gone_s).status is status


@pytest.mark.parametrize(
    ("listed", "status"), [(None, Status.FAILED), (63, Status.FAILED), (500, Status.PASSED), (5000, Status.FAILED)]
)
def test_held_memory_is_what_is_listed_and_a_context(listed: float | None, status: Status) -> None:
    assert judge.held_memory("one", 64, listed, context_mib=1200).status is status


def test_a_field_that_fails_or_is_needed_and_missing_fails_the_check() -> None:
    fields = {"memory": {"value": [1, 0]}, "power_w": {"unsupported": True}}
    assert judge.fields_verdict("one", fields, ["memory"]).status is Status.PASSED
    assert judge.fields_verdict("one", fields, ["memory", "power_w"]).status is Status.FAILED
    wrong = judge.fields_verdict("one", fields | {"model": {"error": "Unknown Error", "code": 999}}, ["memory"])
    assert wrong.status is Status.FAILED
    assert "model: Unknown Error" in wrong.message


@pytest.mark.parametrize(
    ("agent_mib", "child_mib", "percent", "status"),
    [
        (70, 30, 0.5, Status.PASSED),
        (90, 10, 0.5, Status.FAILED),
        (80, 60, 0.5, Status.FAILED),
        (70, 30, 1.5, Status.FAILED),
    ],
)
def test_the_agent_stays_within_its_limits(agent_mib: float, child_mib: float, percent: float, status: Status) -> None:
    assert judge.agent_cost("one", agent_mib, child_mib, {"agent": percent, "child": 9.0}).status is status


def test_notes_never_fail() -> None:
    assert exit_code([StepResult("one", 1, 1, [noted("figures", mib=1)])]) == 0
