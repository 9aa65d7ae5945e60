"""Policies on the command line: apply, plan, get, describe, delete, and their verdicts in `ps`."""

import pytest

from support.builders.api_objects import deployment, instance, now_text, policy
from support.standins.api import ApiDouble

RULE = "min_gpu_utilization: 50\ntime_window: 1m\n"
MANIFESTS = f"""
kind: Deployment
name: a
engine: simulated
utilization_policy: new
---
kind: UtilizationPolicy
name: new
default: true
{RULE}---
kind: UtilizationPolicy
name: old
{RULE}"""
JUDGED = {
    "policy": "p", "policy_generation": 3, "action": "stop", "verdict": "unknown", "reason": "window_not_full",
    "message": "lived through 4m10s of 5m", "since": now_text(250),
}  # fmt: skip


@pytest.fixture
def judged(api: ApiDouble):
    of = deployment("a", policy={"origin": "default", "name": "p", "generation": 3, "spec": policy("p")["spec"]})
    found = instance(of, utilization={**JUDGED, "low_since": now_text(250), "due_at": now_text(-50)})
    api.add(of, found, policy("p", default=True))
    return found["status"]["utilization"]


def test_all_manifests_are_applied_in_one_request(gpuward, api):
    result = gpuward("apply", "-f", "-", stdin=MANIFESTS)
    assert (result.exit_code, result.stdout.split()) == (
        0, ["policy/new", "created", "policy/old", "created", "deployment/a", "created"],
    )  # fmt: skip
    rule = {"kind": "UtilizationPolicy", "min_gpu_utilization": 50, "time_window": 60}
    assert api.bodies("POST", "/api/v1/apply") == [
        {"manifests": [
            {"kind": "Deployment", "name": "a", "engine": "simulated", "utilization_policy": "new"},
            {**rule, "name": "new", "default": True}, {**rule, "name": "old"},
        ]},
    ]  # fmt: skip


def test_policies_alone_need_no_waiting(gpuward):
    only = f"kind: UtilizationPolicy\nname: p\n{RULE}"
    assert gpuward("apply", "--wait", "-f", "-", stdin=only).stdout == "policy/p created\n"


def test_an_invalid_policy_is_refused_before_any_request(gpuward, api):
    result = gpuward("apply", "-f", "-", stdin=MANIFESTS.replace("50", "0", 1))
    assert result.exit_code == 1
    assert "document 2: min_gpu_utilization: must be 1 to 100, got 0" in result.stderr
    assert api.asked == []


def test_plan_shows_changes_of_policies_and_the_effective_ones(gpuward, api):
    api.canned["plan"] = {
        "items": [], "changes": {"a": "create", "b": "update", "c": "unchanged"}, "policy_changes": {"new": "create"},
        "policies": {
            "a": {"origin": "named", "name": "new", "spec": {"min_gpu_utilization": 50, "time_window": 60}},
            "b": {"origin": "inline", "spec": {"min_gpu_utilization": 5, "time_window": 3600, "dry_run": True}},
        },
    }  # fmt: skip
    lines = [" ".join(line.split()) for line in gpuward("plan", "-f", "-", stdin=MANIFESTS).stdout.splitlines()]
    assert lines[:6] == [
        "POLICY CHANGE", "policy/new create", "",
        "DEPLOYMENT CHANGE POLICY",
        "deployment/a create new: below 50% for 1m (all GPUs): stop",
        "deployment/b update inline: below 5% for 1h (all GPUs): stop (dry run)",
    ]  # fmt: skip
    assert lines[6] == "deployment/c unchanged none"
    assert [one["kind"] for one in api.bodies("POST", "/api/v1/plan")[0]["manifests"]] == [
        "Deployment", "UtilizationPolicy", "UtilizationPolicy",
    ]  # fmt: skip


def ps_cells(gpuward) -> list[str]:
    """IDLE and STOPS IN of the only instance."""
    title, line = gpuward("ps").stdout.splitlines()
    begin, end = title.index("IDLE"), title.index("WHY")
    return line[begin:end].replace(" (dry run)", "(dry-run)").split()


@pytest.mark.parametrize(
    ("change", "cells"),
    [
        ({}, ["4m10s", "49s"]),
        ({"low_since": None, "due_at": None, "verdict": "busy"}, ["-", "-"]),
        ({"due_at": None, "reason": "coverage"}, ["4m10s", "-"]),
        ({"verdict": "idle"}, ["4m10s", "idle"]),
        ({"action": "notify"}, ["4m10s", "-"]),
        ({"dry_run": True, "verdict": "idle"}, ["4m10s", "idle(dry-run)"]),
        ({"dry_run": True, "due_at": None}, ["4m10s", "-"]),
    ],
)
def test_ps_shows_idle_time_and_time_to_stop(gpuward, judged, change, cells):
    judged.update({"low_since": now_text(250.5), "due_at": now_text(-49.9), **change})
    idle, due = ps_cells(gpuward)
    assert [_near(idle, "4m10s"), _near(due, "49s")] == cells


@pytest.mark.parametrize("change", [{"verdict": "idle"}, {"verdict": "idle", "dry_run": False}, {"verdict": "busy"}])
def test_what_runs_has_no_why(gpuward, judged, change):
    words = {"acts": "would scale down", "message": "its GPU was below 5 % for 10m"}
    judged.update({"dry_run": True, **words, **change})
    title, line = gpuward("ps").stdout.splitlines()
    assert line[title.index("WHY") :].strip() == "-"


def _near(shown: str, wanted: str) -> str:
    """The wanted text if the shown one differs by a few seconds, as on a slow machine."""
    near = {"4m10s": [f"4m{n}s" for n in range(10, 25)], "49s": [f"{n}s" for n in range(35, 50)]}[wanted]
    return wanted if shown in near else shown


def test_without_a_policy_both_are_a_dash(gpuward, api):
    of = deployment("a")
    api.add(of, instance(of))
    assert ps_cells(gpuward) == ["-", "-"]
    text = gpuward("describe", "deployment", "a").stdout
    assert _field(text, "Policy") == "none"


def _field(text: str, name: str) -> str:
    (line,) = [line for line in text.splitlines() if line.strip().startswith(f"{name}:")]
    return line.split(":", 1)[1].strip()


@pytest.mark.usefixtures("judged")
def test_describe_shows_policy_and_verdict(gpuward, api):
    of = gpuward("describe", "deployment", "a").stdout
    assert _field(of, "Policy") == "p, generation 3 (the default): below 50% for 1m (all GPUs): stop"
    one = gpuward("describe", "instance", "a-1").stdout
    assert _field(one, "Policy") == "p, generation 3: stop"
    assert _field(one, "Verdict").startswith("unknown, for ")
    assert _field(one, "Verdict").endswith("(window_not_full)")
    assert "lived through 4m10s of 5m" in one
    api.objects["deployments"]["a"]["status"]["policy"] |= {"origin": "inline", "name": ""}
    assert _field(gpuward("describe", "deployment", "a").stdout, "Policy").startswith("inline: below 50%")


def test_get_policies_shows_counts_and_freed_hours(gpuward, api):
    watched = policy("stop-idle", default=True, time_window=300, action="scale_down", dry_run=True)
    watched["status"] = {
        "watches": {"deployments": 3, "instances": 7}, "verdicts": {"idle": 1, "busy": 4, "unknown": 2},
        "actions": 5, "would_have_acted": 6, "gpu_seconds_freed": 5400.0,
    }  # fmt: skip
    api.add(watched, policy("other"))
    line = gpuward("get", "policies").stdout.splitlines()[1]
    assert line.split() == ["stop-idle", "yes", "50%", "5m", "scale_down", "(dry", "run)", "3", "7",
                            "1/4/2", "5", "1.50"]  # fmt: skip
    assert "other" not in gpuward("get", "policy", "stop-idle").stdout
    text = gpuward("describe", "policy", "stop-idle").stdout
    assert _field(text, "Rule") == "below 50% for 5m (all GPUs): scale_down (dry run)"
    assert _field(text, "Watches") == "3 deployments, 7 instances"
    assert _field(text, "Verdicts") == "1 idle, 4 busy, 2 unknown"
    assert _field(text, "Freed") == "1.50 GPU hours"
    assert gpuward("get", "policy", "none").exit_code == 3


def test_describe_warns_of_a_stored_share_that_acts_as_another(gpuward, api):
    api.add(policy("p", min_coverage=0.3), policy("q", min_coverage=0.5))
    low = gpuward("describe", "policy", "p").stdout
    assert _field(low, "Min coverage") == "50%"
    assert "min_coverage: 0.3 acts as 0.5" in _field(low, "Warning")
    assert "Warning" not in gpuward("describe", "policy", "q").stdout
    inline = {"origin": "inline", "name": "", "generation": 1, "spec": policy("p", min_coverage=0.3)["spec"]}
    api.add(deployment("low", policy=inline))
    assert "min_coverage: 0.3 acts as 0.5" in _field(gpuward("describe", "deployment", "low").stdout, "Policy")


def test_describe_policy_shows_its_events(gpuward, api):
    made = policy("p")
    api.add(made)
    api.objects["events"]["1"] = {
        "id": 1, "at": now_text(5), "reason": "policy_changed",
        "message": "policy p was changed: dry_run True -> False",
        "objects": [f"policy:{made['uid']}"],
    }  # fmt: skip
    for words in (("describe", "policy", "p"), ("events", "--for", "policy/p")):
        assert "dry_run True -> False" in gpuward(*words).stdout


def test_delete_policy(gpuward, api):
    api.add(policy("p"))
    result = gpuward("delete", "policy", "p")
    assert (result.exit_code, result.stdout) == (0, "policy/p deleted\n")
    assert gpuward("delete", "policy", "p").exit_code == 3
