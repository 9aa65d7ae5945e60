import pytest

from support.builders.api_objects import worker

MOVES = {
    "instance": "chat-x", "deployment": "chat", "workers": ["gpu-1"], "action": "moves", "to_workers": ["gpu-2"],
    "fits": True, "message": "its replacement starts first, or it stops after 30m",
}  # fmt: skip
NOWHERE = {**MOVES, "instance": "big-y", "to_workers": [], "fits": False, "message": "fits nowhere now: 0/1 fit"}
STAYS = {**MOVES, "instance": "job-z", "action": "stays", "to_workers": [], "fits": None, "message": "until it ends"}


def test_a_drain_prints_what_becomes_of_each_instance_before_it_acts(gpuward, api):
    api.add(worker("gpu-1"))
    api.canned["drain"] = {"items": [MOVES, NOWHERE, STAYS]}
    result = gpuward("drain", "gpu-1")
    lines = result.stdout.splitlines()
    assert (result.exit_code, lines[-1]) == (0, "worker/gpu-1 is draining")
    assert [line.split()[:4] for line in lines[1:-1]] == [
        ["chat-x", "gpu-1", "moves", "gpu-2"],
        ["big-y", "gpu-1", "moves", "nowhere"],
        ["job-z", "gpu-1", "stays", "-"],
    ]
    posts = [path for method, path, _, _ in api.asked if method == "POST"]
    assert posts == ["/api/v1/plan/drain", "/api/v1/workers/gpu-1/drain"]


@pytest.mark.parametrize(
    ("flags", "body"),
    [
        ((), None),
        (("--now",), {"now": True}),
        (("--timeout", "5m"), {"timeout": 300.0}),
        (("--restart-tasks", "--timeout", "0s"), {"timeout": 0.0, "restart_tasks": True}),
        (("--keep-tasks",), {"restart_tasks": False}),
    ],
)
def test_only_given_flags_are_sent(gpuward, api, flags, body):
    api.add(worker("gpu-1"))
    assert gpuward("drain", "gpu-1", *flags).exit_code == 0
    assert api.bodies("POST", "/api/v1/workers/gpu-1/drain") == [body]
    assert api.bodies("POST", "/api/v1/plan/drain") == [{"workers": ["gpu-1"], **(body or {})}]


def test_contradicting_flags_are_a_usage_error(gpuward, api):
    api.add(worker("gpu-1"))
    assert gpuward("drain", "gpu-1", "--now", "--timeout", "5m").exit_code == 2
    assert api.asked == []


def test_workers_are_planned_together_and_each_is_tried(gpuward, api):
    api.add(worker("gpu-1"), worker("gpu-2"))
    result = gpuward("drain", "gpu-1", "gone", "gpu-2")
    assert result.exit_code == 3
    assert api.bodies("POST", "/api/v1/plan/drain") == [{"workers": ["gpu-1", "gpu-2"]}]
    assert result.stdout.splitlines() == ["worker/gpu-1 is draining", "worker/gpu-2 is draining"]


def test_a_wait_ends_when_nothing_runs_there(gpuward, api):
    one = worker("gpu-1", "draining")
    one["spec"] = {"draining": True}
    one["status"]["conditions"] = [
        {"type": "Drained", "status": "false", "reason": "drain_waits", "message": "waits for chat-x"}
    ]
    api.add(one)
    reads = []

    def later(kind: str, _name: str) -> None:
        reads.append(kind)
        if len(reads) > 3:
            one["status"] |= {"state": "drained", "conditions": []}

    api.script = later
    result = gpuward("drain", "gpu-1", "--wait")
    assert result.exit_code == 0
    assert result.stderr.splitlines() == ["gpu-1: draining - waits for chat-x", "gpu-1: drained"]


def test_a_wait_ends_with_4_where_only_tasks_run_on(gpuward, api):
    one = worker("gpu-1", "draining")
    one["spec"] = {"draining": True}
    one["status"]["conditions"] = [
        {"type": "Drained", "status": "false", "reason": "tasks_run_on", "message": "job-z runs until it ends"}
    ]
    api.add(one)
    result = gpuward("drain", "gpu-1", "--wait")
    assert result.exit_code == 4
    assert "job-z" in result.stderr
