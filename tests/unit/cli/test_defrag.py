"""`defrag`: the plan, the relocations, and their progress."""

import json

MOVE = {
    "instance": "hello-1", "deployment": "hello", "workers": ["gpu-1"], "to_workers": ["gpu-2"],
    "to_gpus": ["GPU-aaaaaaaa-0000-0000-0000-000000000000"], "memory_mib": 10240,
}  # fmt: skip
BIG = "kind: Deployment\nname: big\nengine: simulated\nresources: {gpus: 8}\n"


def test_a_plan_shows_relocations_and_starts_none(gpuward, api):
    api.canned["defrag"] = {"moves": [MOVE], "fits": ["big-1"]}
    result = gpuward("defrag", "--plan")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split() == ["hello-1", "gpu-1", "gpu-2", "aaaaaaaa", "10GiB"]
    assert "will fit: big-1" in result.stdout
    assert api.bodies("POST", "/api/v1/defrag") == [{"apply": False, "manifests": []}]


def test_apply_for_a_manifest(gpuward, api):
    api.canned["defrag"] = {"moves": [MOVE], "fits": ["big#0"], "applied": True}
    result = gpuward("defrag", "--apply", "-f", "-", stdin=BIG)
    assert "relocations started" in result.stdout
    (body,) = api.bodies("POST", "/api/v1/defrag")
    assert (body["apply"], [one["name"] for one in body["manifests"]]) == (True, ["big"])


def test_insufficient_relocations_exit_with_1(gpuward, api):
    api.canned["defrag"] = {"moves": [], "fits": [], "left": ["big-1"]}
    result = gpuward("defrag", "--plan")
    assert result.exit_code == 1
    assert "no relocations free enough capacity for big-1" in result.stderr
    result = gpuward("defrag", "--plan", "-o", "json")
    assert json.loads(result.stdout) == api.canned["defrag"]
    api.canned["defrag"]["left"] = [f"big#{n}" for n in range(5000)]
    assert gpuward("defrag", "--plan").stderr.strip().endswith("big#6, big#7 and 4992 more")


def test_the_progress_of_relocations(gpuward, api):
    moving = {
        "instance": "hello-1", "deployment": "hello", "to_workers": ["gpu-2"], "to_gpus": [], "demand": "big-1",
        "state": "moving", "copy_name": "hello-2", "created_at": "2026-11-21T12:00:00Z",
    }  # fmt: skip
    api.canned["defrag"] = {"items": [moving]}
    assert gpuward("defrag").stdout.splitlines()[1].split()[:4] == ["hello-1", "moving", "gpu-2", "hello-2"]


def test_contradicting_flags_are_usage_errors(gpuward):
    assert gpuward("defrag", "--plan", "--apply").exit_code == 2
    assert gpuward("defrag", "-f", "x.yaml").exit_code == 2
