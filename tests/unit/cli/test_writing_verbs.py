import json

import pytest

from schemas.version import __version__
from support.builders.api_objects import deployment, gpu, instance, now_text, worker
from support.standins.api import ApiDouble, refusal

MANIFEST = "kind: Deployment\nname: hello\nengine: simulated\nresources: {gpus: 1, gpu_memory: 8GiB}\n"
SPEC = {"engine": "simulated", "resources": {"gpus": 1, "gpu_memory": "8192MiB"}}


def test_apply_sends_the_manifest_without_defaults(gpuward, api, tmp_path):
    file = tmp_path / "hello.yaml"
    file.write_text(MANIFEST)
    result = gpuward("apply", "-f", str(file))
    assert (result.exit_code, result.stdout) == (0, "deployment/hello created\n")
    assert api.bodies("POST", "/api/v1/apply") == [{"manifests": [{"kind": "Deployment", "name": "hello", **SPEC}]}]


def test_apply_prints_the_outcome_of_each_object(gpuward, api):
    api.add(deployment("hello", spec=SPEC))
    two = f"{MANIFEST}---\nkind: Deployment\nname: other\nengine: simulated\n"
    assert gpuward("apply", "-f", "-", stdin=two).stdout == "deployment/hello unchanged\ndeployment/other created\n"
    changed = MANIFEST + "replicas: 3\n"
    assert gpuward("apply", "-f", "-", stdin=changed).stdout == "deployment/hello updated\n"


def test_an_invalid_manifest_changes_nothing_and_names_the_field(gpuward, api):
    two = MANIFEST + "---\nkind: Deployment\nname: other\nengine: simulated\nreplicass: 3\n"
    result = gpuward("apply", "-f", "-", stdin=two)
    assert result.exit_code == 1
    assert "replicass" in result.stderr
    assert "replicas'" in result.stderr
    assert api.asked == []


def test_a_missing_file_is_a_usage_error(gpuward):
    result = gpuward("apply", "-f", "/nowhere/x.yaml")
    assert result.exit_code == 2
    assert "/nowhere/x.yaml cannot be read" in result.stderr


def _later(api: ApiDouble, *phases: str):
    """Each read of the deployment finds the next phase, and then always the last one."""
    left = list(phases)

    def script(kind: str, name: str) -> None:
        found = api.objects[kind].get(name)
        if found is not None and found["status"]["observed_generation"] == found["generation"]:
            found["status"]["phase"] = left.pop(0) if len(left) > 1 else left[0]

    return script


def test_apply_wait_prints_progress_until_it_runs(gpuward, api):
    of = deployment("hello", spec=SPEC)
    earlier = deployment("hello")  # the same name with another uid
    api.add(of, instance(of, 1, "starting", worker="gpu-1"), instance(earlier, 2, "stopping"))
    api.script = _later(api, "pending", "pending", "progressing", "progressing", "running")
    result = gpuward("apply", "-f", "-", "--wait", stdin=MANIFEST)
    assert result.exit_code == 0
    progress = ["hello-1: starting on gpu-1", "hello: pending 0/1", "hello: progressing 0/1", "hello: running 0/1"]
    assert [line.strip() for line in result.stderr.splitlines()] == progress


def test_apply_wait_exits_with_1_at_a_failure(gpuward, api):
    api.script = _later(api, "pending", "failed")
    result = gpuward("apply", "-f", "-", "--wait", stdin=MANIFEST)
    assert result.exit_code == 1
    assert "hello: failed" in result.stderr


def test_apply_wait_exits_with_4_at_the_timeout(gpuward):
    result = gpuward("apply", "-f", "-", "--wait", "--timeout", "150ms", stdin=MANIFEST)
    assert result.exit_code == 4
    assert "still not running: hello" in result.stderr


def test_an_invalid_timeout_is_a_usage_error(gpuward):
    assert gpuward("apply", "-f", "-", "--wait", "--timeout", "soon", stdin=MANIFEST).exit_code == 2


def test_plan_shows_placements_and_exits_with_1_if_one_does_not_fit(gpuward, api):
    fits = {"deployment": "hello", "instance": 0, "fits": True, "worker": "gpu-1", "memory_mib_per_gpu": 8192}
    misfit = {"deployment": "hello", "instance": 1, "fits": False, "explain": {"workers": 1, "message": "0/1 fit"}}
    api.canned["plan"] = {"items": [fits], "changes": {"hello": "create"}}
    result = gpuward("plan", "-f", "-", stdin=MANIFEST)
    assert result.exit_code == 0
    assert "gpu-1" in result.stdout
    assert "create" in result.stdout
    assert api.bodies("POST", "/api/v1/plan") == [{"manifests": [{"kind": "Deployment", "name": "hello", **SPEC}]}]
    api.canned["plan"]["items"].append(misfit)
    result = gpuward("plan", "-f", "-", "-o", "json", stdin=MANIFEST)
    assert result.exit_code == 1
    assert json.loads(result.stdout) == api.canned["plan"]


def test_scale_stop_start(gpuward, api):
    api.add(deployment("hello"))
    assert gpuward("scale", "hello", "3").exit_code == 0
    assert api.bodies("POST", "/api/v1/deployments/hello/scale") == [{"replicas": 3}]
    assert gpuward("stop", "hello").exit_code == 0
    assert gpuward("start", "hello").exit_code == 0
    assert [path.rsplit("/", 1)[1] for _, path, _, _ in api.asked] == ["scale", "stop", "start"]


@pytest.mark.parametrize("words", [("scale", "hello", "-1"), ("scale", "hello", "many"), ("scale", "hello")])
def test_an_invalid_scale_is_a_usage_error(gpuward, words):
    assert gpuward(*words).exit_code == 2


@pytest.mark.parametrize("verb", ["stop", "start", "delete", "cordon"])
def test_verbs_on_missing_objects_exit_with_3(gpuward, verb):
    assert gpuward(verb, "none").exit_code == 3


def test_delete_waits_until_the_object_is_gone(gpuward, api):
    api.add(deployment("hello", "running"))
    reads = []

    def script(kind: str, name: str) -> None:
        reads.append(name)
        if len(reads) == 3:
            del api.objects[kind][name]

    api.script = script
    result = gpuward("delete", "hello", "--wait")
    assert result.exit_code == 0
    assert result.stdout == "deployment/hello deleted\n"
    assert len(reads) == 3


def test_delete_does_not_wait_for_a_recreated_object(gpuward, api):
    api.add(deployment("hello"))

    def script(kind: str, name: str) -> None:
        if api.objects[kind][name]["deleted_at"] is not None:
            api.add(deployment("hello"))

    api.script = script
    assert gpuward("delete", "hello", "--wait", "--timeout", "5s").exit_code == 0


def test_only_a_worker_can_be_confirmed_dead(gpuward, api):
    api.add(worker("gpu-1"))
    assert gpuward("delete", "worker", "gpu-1", "--confirm-dead").exit_code == 0
    assert api.asked[-1][:3] == ("DELETE", "/api/v1/workers/gpu-1", {"confirm_dead": "true"})
    assert gpuward("delete", "hello", "--confirm-dead").exit_code == 2
    assert gpuward("delete", "gpu", "x").exit_code == 2
    assert gpuward("delete", "worker", "gpu-1", "gpu/x").exit_code == 2


@pytest.mark.parametrize("verb", ["cordon", "uncordon", "drain"])
def test_workers_are_cordoned_and_drained(gpuward, api, verb):
    api.add(worker("gpu-1"))
    assert gpuward(verb, "gpu-1").exit_code == 0
    assert api.asked[-1][:2] == ("POST", f"/api/v1/workers/gpu-1/{verb}")


@pytest.mark.parametrize("verb", ["cordon", "uncordon"])
def test_one_gpu_is_cordoned_by_index_or_uuid(gpuward, api, verb):
    assert gpuward(verb, "none-such", "--gpu", "0").exit_code == 3
    api.add(worker("gpu-1"))
    assert "has no GPUs" in gpuward(verb, "gpu-1", "--gpu", "0").stderr
    api.add(gpu("GPU-a", "gpu-1", index=0))
    api.add(gpu("GPU-b", "gpu-1", index=1))
    for named in ("1", "GPU-b"):
        result = gpuward(verb, "gpu-1", "--gpu", named)
        assert (result.exit_code, result.stdout) == (0, f"gpu/gpu-1:1 {verb}ed\n")
        assert api.asked[-1][:2] == ("POST", f"/api/v1/gpus/GPU-b/{verb}")
    result = gpuward(verb, "gpu-1", "--gpu", "7")
    assert result.exit_code == 3
    assert "'7' is unknown on gpu-1; it has 0 (GPU-a), 1 (GPU-b)" in result.stderr


def test_only_the_token_is_printed(gpuward, api):
    result = gpuward("join-token", "create", "--expires", "30m")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "token-value\n", "")
    token_id = next(iter(api.objects["tokens"]))
    assert token_id in gpuward("join-token", "list").stdout
    assert gpuward("join-token", "revoke", token_id).exit_code == 0


def test_only_the_key_is_printed_and_its_role_is_checked(gpuward, api):
    result = gpuward("key", "create", "--role", "viewer", "--name", "grafana")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "key-value\n", "")
    assert api.bodies("POST", "/api/v1/keys") == [{"role": "viewer", "name": "grafana"}]
    result = gpuward("key", "create", "--role", "root")
    assert result.exit_code == 2
    assert "admin, operator, viewer, inference" in result.stderr
    assert gpuward("key", "revoke", "none").exit_code == 3


def test_a_secret_is_read_from_stdin_and_not_printed(gpuward, api):
    result = gpuward("secret", "set", "hf", stdin="s3cret\n")
    assert result.exit_code == 0
    assert "s3cret" not in result.output
    assert api.secrets == {"hf": "s3cret"}
    assert gpuward("secret", "set", "hf", "--plain", stdin="s3cret\n").exit_code == 0
    # Controllers of the version before refuse fields that they do not know.
    assert api.bodies("PUT", "/api/v1/secrets/hf") == [{"value": "s3cret"}, {"value": "s3cret", "plain": True}]
    assert gpuward("secret", "set", "empty", stdin="").exit_code == 2
    assert gpuward("secret", "delete", "hf").exit_code == 0
    assert api.secrets == {}


def test_audit_exits_with_1_at_a_violation(gpuward, api):
    api.canned["audit"] = {"ok": True, "checked": ["a", "b"], "violations": []}
    assert gpuward("audit").stdout == "2 invariants hold\n"
    broken = {"invariant": "a", "message": "over-claimed", "evidence": {}}
    api.canned["audit"] = {"ok": False, "checked": ["a", "b"], "violations": [broken]}
    result = gpuward("audit")
    assert result.exit_code == 1
    assert "over-claimed" in result.stdout


def test_audit_repair_shows_what_it_changed_and_what_is_left(gpuward, api):
    change = {"invariant": "a", "object": "gpu:GPU-1", "before": {"claims": 0}, "after": {"claims": 1}}
    left = {"invariant": "b", "message": "broken: b", "evidence": {}, "way_out": "restore a backup"}
    mended = {"ok": True, "dry_run": False, "found": [], "changes": 1, "mended": [change], "left": []}
    api.canned["repair"] = mended
    result = gpuward("audit", "--repair")
    assert result.exit_code == 0
    assert "claims=0" in result.stdout
    assert result.stdout.endswith("1 changes made\n")
    api.canned["repair"] = mended | {"ok": False, "dry_run": True, "left": [left]}
    result = gpuward("audit", "--repair", "--dry-run")
    assert result.exit_code == 1
    assert "1 changes would be made" in result.stdout
    assert "restore a backup" in result.stdout
    assert [(method, path, query) for method, path, query, _ in api.asked] == [
        ("POST", "/api/v1/audit/repair", {}),
        ("POST", "/api/v1/audit/repair", {"dry_run": "true"}),
    ]
    assert gpuward("audit", "--dry-run").exit_code == 2


def test_apply_wait_on_a_stopped_deployment_exits_with_1_and_the_fix(gpuward, api):
    limit = {"source": "user", "max_replicas": 0, "created_at": now_text()}
    api.add(deployment("hello", "stopped", spec=SPEC, intents=[limit]))
    result = gpuward("apply", "-f", "-", "--wait", stdin=MANIFEST)
    assert result.exit_code == 1
    assert "gpuward start hello" in result.stderr


def test_apply_prints_warnings(gpuward, api):
    said = "placement.workers: unknown worker gone; the others are used"
    api.add({**deployment("hello", spec=SPEC), "warnings": [said]})
    result = gpuward("apply", "-f", "-", stdin=MANIFEST)
    assert (result.exit_code, result.stdout) == (0, "deployment/hello unchanged\n")
    assert result.stderr == f"warning: {said}\n"


def test_several_are_stopped_and_each_is_tried(gpuward, api):
    api.add(deployment("a"), deployment("b"))
    done = gpuward("stop", "a", "missing", "b", "a")
    assert done.exit_code == 3
    assert done.stdout == "deployment/a stopped\ndeployment/b stopped\n"
    assert "missing" in done.stderr
    asked = [path for method, path, _, _ in api.asked if method == "POST"]
    assert asked == [f"/api/v1/deployments/{name}/stop" for name in ("a", "missing", "b")]


def test_several_workers_are_cordoned_but_gpus_are_of_one(gpuward, api):
    api.add(worker("w1"), worker("w2"))
    assert gpuward("cordon", "w1", "w2").stdout == "worker/w1 cordoned\nworker/w2 cordoned\n"
    refused = gpuward("cordon", "w1", "w2", "--gpu", "0")
    assert (refused.exit_code, "--gpu" in refused.stderr) == (2, True)


def test_refusals_of_two_kinds_exit_with_1(gpuward, api):
    api.add(deployment("a"))

    async def refuse(request):
        if request.path.endswith("/a/start"):
            return refusal(409, "conflict", "a cannot start")
        return refusal(404, "not_found", "no such deployment")

    api.refuse = refuse
    done = gpuward("start", "missing", "a")
    assert done.exit_code == 1
    assert done.stderr.splitlines() == ["gpuward: no such deployment", "gpuward: a cannot start"]


def test_the_version_is_one_line(gpuward):
    done = gpuward("--version")
    assert (done.exit_code, done.stdout) == (0, f"gpuward {__version__}\n")


def test_restart_is_of_a_deployment_or_of_one_instance(gpuward, api):
    api.add(deployment("chat"))
    assert gpuward("restart", "chat").exit_code == 0
    assert gpuward("restart", "chat", "--instance", "chat-x").exit_code == 0
    assert api.bodies("POST", "/api/v1/deployments/chat/restart") == [None, {"instance": "chat-x"}]
    assert gpuward("restart", "none").exit_code == 3


def test_label_worker_states_labels_and_networks(gpuward, api):
    api.add(worker("gpu-1"))
    given = ("gpuward.io/zone=a", "gpuward.io/old-", "gpuward.io/note=b-", "--advertise-network", "10.9.0.0/24")
    gpuward("label", "worker", "gpu-1", *given)
    assert api.bodies("PATCH", "/api/v1/workers/gpu-1") == [
        {
            "labels": {"gpuward.io/old": None, "gpuward.io/zone": "a", "gpuward.io/note": "b-"},
            "advertise_networks": ["10.9.0.0/24"],
        }
    ]
    assert gpuward("label", "worker", "gpu-1").exit_code == 2
    assert gpuward("label", "worker", "gpu-1", "zone").exit_code == 2
