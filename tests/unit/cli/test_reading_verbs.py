import contextlib
import json
import signal
import subprocess
import sys

import pytest
import yaml

from support.builders.api_objects import deployment, gpu, instance, now_text, worker
from support.standins.api import ApiDouble

GPU_A = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
GPU_B = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
GPU_C = "GPU-cccccccc-0000-0000-0000-000000000000"


@pytest.fixture
def hello(api: ApiDouble):
    found = deployment("hello", spec={"replicas": 2}, ready=1, conditions=[{"type": "Available", "status": "true"}])
    pending = {"workers": 2, "rejected": {"need_gt_free": 2}, "message": "0/2 fit: 2 VRAM"}
    claims = [{"device": GPU_A, "worker": "gpu-1", "memory_mib": 8192, "exclusive": False, "epoch": 3}]
    api.add(
        found,
        instance(found, 1, worker="gpu-1", gpus=[GPU_A, GPU_B, GPU_C], restarts=4, epoch=3, claims=claims),
        instance(found, 2, "pending", reason="need_gt_free", explain=pending),
        worker("gpu-1"),
        worker("gpu-2", "cordoned", free_mib=0),
        gpu(GPU_A, "gpu-1", claims=[{"instance": "hello-1", "deployment": "hello", **_claim(8192)}]),
        gpu(GPU_B, "gpu-1", 1, claims=[{"instance": "x-1", "deployment": "x", **_claim(81920, exclusive=True)}]),
    )
    return found


def _claim(memory_mib: int, *, exclusive: bool = False):
    return {"memory_mib": memory_mib, "exclusive": exclusive, "epoch": 1}


@pytest.mark.usefixtures("hello")
def test_ps_shows_where_each_instance_runs_or_why_it_is_pending(gpuward):
    lines = gpuward("ps").stdout.splitlines()
    titles = ["NAME", "DEPLOYMENT", "PHASE", "WORKER", "GPUS", "RESTARTS", "AGE", "IDLE", "STOPS", "IN", "WHY"]
    assert lines[0].split() == titles
    assert lines[1].split()[:8] == ["hello-1", "hello", "running", "gpu-1", "gpu-1:0,gpu-1:1", "+1", "4", "60s"]
    assert lines[2].endswith("0/2 fit: 2 VRAM")
    assert all(line == line.rstrip() and "\x1b" not in line for line in lines)


@pytest.mark.usefixtures("hello")
def test_a_long_reason_is_not_cut_off_when_piped(gpuward, api):
    explain = api.objects["instances"]["hello-2"]["status"]["explain"]
    explain["message"] = reason = "why " * 200 + "end"
    assert reason in gpuward("ps").stdout


@pytest.mark.usefixtures("hello")
def test_ps_of_one_deployment_lists_only_its_instances(gpuward, api):
    other = deployment("other")
    api.add(other, instance(other))
    assert "other" not in gpuward("ps", "hello").stdout


def test_ps_of_a_missing_deployment_is_an_error(gpuward, api):
    api.add(deployment("idle"))
    assert (gpuward("ps", "idle").exit_code, gpuward("ps", "nope").exit_code) == (0, 3)
    assert "nope" in gpuward("ps", "nope").stderr


def test_an_empty_list_is_reported_on_stderr(gpuward):
    result = gpuward("ps")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no instances found" in result.stderr


@pytest.mark.parametrize(
    ("words", "first"),
    [("deployments", "hello"), ("instance", "hello-1"), ("workers", "gpu-1"), ("GPUs", "gpu-1:0")],
)
@pytest.mark.usefixtures("hello")
def test_get_puts_names_first(gpuward, words, first):
    result = gpuward("get", words)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0].startswith("NAME")
    assert result.stdout.splitlines()[1].split()[0] == first


@pytest.mark.usefixtures("hello")
def test_json_and_yaml_are_the_objects_of_the_api(gpuward, api):
    api.objects["deployments"]["hello"]["status"]["of_a_newer_server"] = 1
    one = json.loads(gpuward("get", "deployment", "hello", "-o", "json").stdout)
    many = json.loads(gpuward("get", "deployments", "-o", "json").stdout)
    as_yaml = yaml.safe_load(gpuward("get", "deployments", "-o", "yaml").stdout)
    assert one == api.objects["deployments"]["hello"]
    assert many == as_yaml == {"items": [one]}


@pytest.mark.usefixtures("hello")
def test_wide_shows_more_columns(gpuward):
    assert GPU_C in gpuward("ps", "-o", "wide").stdout
    assert GPU_C not in gpuward("ps").stdout


def test_all_pages_of_a_list_are_read(gpuward, api):
    for number in range(250):
        api.add(deployment(f"d-{number:03}"))
    assert len(json.loads(gpuward("get", "deployments", "-o", "json").stdout)["items"]) == 250


@pytest.mark.usefixtures("hello")
def test_unknown_is_shown_as_unknown_not_as_zero(gpuward, api):
    api.objects["workers"]["gpu-1"]["status"]["gpus_known"] = False
    assert "unknown" in gpuward("get", "workers").stdout.splitlines()[1]
    assert gpuward("get", "gpus").stdout.splitlines()[1].split()[6] == "-"


@pytest.mark.usefixtures("hello")
def test_gpus_show_their_holders(gpuward):
    lines = gpuward("get", "gpus").stdout.splitlines()
    assert lines[1].endswith("hello (8GiB)")
    assert lines[2].endswith("x (exclusive)")


def test_an_unknown_kind_is_a_usage_error_with_the_known_kinds(gpuward):
    result = gpuward("get", "pods")
    assert result.exit_code == 2
    assert "deployments, instances, workers, gpus, policies, events, keys, tokens" in result.stderr


@pytest.mark.parametrize("words", [("get", "worker", "none"), ("get", "key", "none"), ("describe", "gpu", "none")])
def test_missing_objects_exit_with_3(gpuward, words):
    result = gpuward(*words)
    assert result.exit_code == 3
    assert "none" in result.stderr
    assert result.stdout == ""


def test_describe_a_deployment(gpuward, api, hello):
    about = [f"deployment:{hello['uid']}"]
    for number in (1, 2):
        event = {
            "id": number,
            "at": hello["created_at"],
            "reason": f"reason_{number}",
            "message": "m",
            "objects": about,
        }
        api.objects["events"] = {str(number): event, **api.objects["events"]}  # newest first, as the API does
    text = gpuward("describe", "deployment", "hello").stdout
    for part in ("Phase:      running", "Ready:      1 of 2", "  replicas: 2", "Available", "hello-2", "need_gt_free"):
        assert part in text
    assert text.index("reason_1") < text.index("reason_2")


def test_describe_shows_the_commits_of_models_and_whether_branches_have_moved(gpuward, api, hello):
    kept, moved = {"org/model@main": "a" * 40, "org/lora@main": "b" * 40}, "c" * 40
    hello["status"]["model_commits"] = kept
    text = gpuward("describe", "deployment", "hello").stdout
    assert all(f"{model}: {commit}\n" in text for model, commit in kept.items()), "though the hub cannot be asked"
    api.canned["models"] = {
        "items": [
            {"model": "org/model@main", "commit": "a" * 40, "head": moved, "moved": True},
            {"model": "org/lora@main", "commit": "b" * 40, "problem": "is gated"},
        ]
    }
    lines = gpuward("describe", "deployment", "hello").stdout.splitlines()
    (told,) = [line for line in lines if moved in line]
    assert "org/model@main" in told
    assert "gpuward restart hello --pull" in told


@pytest.mark.usefixtures("hello")
def test_describe_an_instance_shows_claims_and_reasons(gpuward):
    text = gpuward("describe", "instance", "hello-1").stdout
    assert "gpu-1:0" in text
    assert GPU_A not in text
    assert GPU_A in gpuward("describe", "instance", "hello-1", "-o", "wide").stdout
    assert "2 x need_gt_free" in gpuward("describe", "instance", "hello-2").stdout


@pytest.mark.usefixtures("hello")
def test_describe_worker_and_gpu(gpuward):
    assert "State:       cordoned (phase ready)" in gpuward("describe", "worker", "gpu-2").stdout
    assert "exclusive" in gpuward("describe", "gpu", GPU_B).stdout.lower()


def test_get_deployments_shows_the_engine_that_was_chosen(gpuward, api):
    chosen, waits = deployment("chosen", spec={"engine": "auto"}), deployment("waits", spec={"engine": "auto"})
    chosen["status"]["engines"] = ["vllm"]
    api.add(chosen, waits)
    title, first, second = gpuward("get", "deployments").stdout.splitlines()
    at = title.split().index("ENGINE")
    assert (first.split()[at], second.split()[at]) == ("vllm", "auto")


@pytest.mark.usefixtures("hello")
def test_a_cordoned_gpu_shows_that(gpuward, api):
    api.objects["gpus"][GPU_A]["spec"] = {"cordoned": True}
    api.objects["gpus"][GPU_B]["spec"] = {"cordoned": True}
    api.objects["gpus"][GPU_B]["status"] |= {"health": "unhealthy", "health_reason": "xid_48: x"}
    first, second = gpuward("get", "gpus").stdout.splitlines()[1:]
    assert " cordoned " in first
    assert "cordoned by an operator" in first
    assert " unhealthy " in second
    assert "xid_48: x; cordoned by an operator" in second
    assert "Cordoned:" in gpuward("describe", "gpu", GPU_A).stdout


@pytest.mark.usefixtures("hello")
def test_describe_as_json_is_the_object(gpuward, api):
    found = gpuward("describe", "worker", "gpu-1", "-o", "json").stdout
    assert json.loads(found) == api.objects["workers"]["gpu-1"]


@pytest.mark.usefixtures("hello")
def test_top_once_shows_workers_and_gpus(gpuward):
    text = gpuward("top", "-n").stdout
    assert "cordoned" in text
    assert "x-1" in text


@pytest.mark.usefixtures("hello")
def test_text_of_the_server_cannot_control_the_terminal(gpuward, api):
    api.objects["instances"]["hello-1"]["status"]["message"] = "\x1b[2Jgone\nsecond"
    result = gpuward("ps")
    assert "\x1b" not in result.stdout
    assert len(result.stdout.splitlines()) == 3


@pytest.mark.usefixtures("hello")
def test_logs_of_one_instance_are_printable_and_several_get_prefixes(gpuward, api):
    api.logs = {"hello-1": b"one\n\xfftwo\n", "hello-2": b"three"}
    shown = gpuward("logs", "hello-1", "--tail", "5", "--previous").stdout_bytes
    assert shown == "one\n\N{REPLACEMENT CHARACTER}two\n".encode()
    assert api.asked[-1][2] == {"tail": "5", "previous": "1"}
    both = gpuward("logs", "hello", "-f").stdout_bytes
    assert sorted(both.splitlines()) == [
        b"[hello-1] one",
        "[hello-1] \N{REPLACEMENT CHARACTER}two".encode(),
        b"[hello-2] three",
    ]


def test_logs_of_missing_objects_exit_with_3_and_without_instances_with_1(gpuward, api):
    api.add(deployment("idle", "stopped"))
    assert gpuward("logs", "none").exit_code == 3
    result = gpuward("logs", "idle")
    assert result.exit_code == 1
    assert "has no instances" in result.stderr


def test_logs_of_all_replicas_are_merged_by_the_server(gpuward, api, hello):
    assert {one["spec"]["deployment"] for one in api.objects["instances"].values()} == {hello["name"]}
    api.logs["hello"] = b"[hello-1] 2026-11-23T14:05:00.100Z one\n[hello-2] 2026-11-23T14:05:00.200Z two\n"
    words = ("--all", "--since", "10m", "--timestamps", "-f")
    assert gpuward("logs", "hello", *words).stdout_bytes == api.logs["hello"]
    asked = {"since": "10m", "timestamps": "true", "follow": "1"}
    assert api.asked[-1][1:3] == ("/api/v1/deployments/hello/logs", asked)
    assert gpuward("logs", "hello-2", "--all").stdout_bytes == api.logs["hello"]
    assert api.asked[-1][1:3] == ("/api/v1/deployments/hello/logs", {"instance": "hello-2"})


@pytest.mark.usefixtures("hello")
def test_logs_of_one_instance_by_time(gpuward, api):
    api.logs["hello-1"] = b"2026-11-23T14:05:00.100Z one\n"
    assert gpuward("logs", "hello-1", "--since", "5m", "--timestamps").stdout_bytes == api.logs["hello-1"]
    assert api.asked[-1][2] == {"since": "5m", "timestamps": "true"}


def test_events_are_listed_oldest_first_and_by_object(gpuward, api, hello):
    for number, about in ((1, hello["uid"]), (2, "other"), (3, hello["uid"])):
        event = {"id": number, "at": hello["created_at"], "reason": f"r{number}", "message": "m"}
        event["objects"] = [f"deployment:{about}"]
        api.objects["events"] = {str(number): event, **api.objects["events"]}
    reasons = [line.split()[1] for line in gpuward("events").stdout.splitlines()[1:]]
    assert reasons == ["r1", "r2", "r3"]
    found = json.loads(gpuward("events", "--for", "deployment/hello", "-o", "json").stdout)
    assert [item["id"] for item in found["items"]] == [1, 3]


def test_events_are_listed_by_reason_and_time_with_object_and_actor(gpuward, api):
    for number in range(1, 4):
        event = {"id": number, "at": f"2026-11-23T14:0{number}:00Z", "reason": f"r{number}", "message": "m",
                 "objects": ["deployment:u", "instance:hello-1"], "actor": "key:ann",
                 "subjects": [{"kind": "deployment", "name": "hello", "uid": "u"},
                              {"kind": "instance", "name": "hello-1", "uid": "hello-1"}]}  # fmt: skip
        api.objects["events"] = {str(number): event, **api.objects["events"]}
    words = ("events", "--since", "2026-11-23T14:01:00Z", "--reason", "r2", "--reason", "r1")
    title, *lines = gpuward(*words).stdout.splitlines()
    assert title.split() == ["AGE", "REASON", "OBJECT", "ACTOR", "MESSAGE"]
    assert [line.split()[1:] for line in lines] == [["r2", "instance/hello-1", "key:ann", "m"]]
    assert api.asked[-1][2] == {"limit": "1000", "after": "2026-11-23T14:01:00Z", "reason": "r2,r1"}
    gpuward("events")
    assert api.asked[-1][2] == {"limit": "50"}


def test_equal_events_in_a_row_are_one_line(gpuward, api):
    for number, message in enumerate(["a", "b", "b", "b", "a"], 1):
        event = {"id": number, "at": now_text(600 - 60 * number), "reason": "backoff", "message": message,
                 "objects": ["instance:x"], "actor": "leader"}  # fmt: skip
        api.objects["events"] = {str(number): event, **api.objects["events"]}
    found = [line.split(maxsplit=4) for line in gpuward("events").stdout.splitlines()[1:]]
    assert [(row[0], row[4]) for row in found] == [
        ("9m", "a"), ("6m", "b (\N{MULTIPLICATION SIGN}3, the first 8m ago)"), ("5m", "a"),
    ]  # fmt: skip
    assert len(gpuward("events", "-o", "wide").stdout.splitlines()) == 6
    assert len(json.loads(gpuward("events", "-o", "json").stdout)["items"]) == 5


def test_events_for_an_invalid_object_is_a_usage_error(gpuward):
    result = gpuward("events", "--for", "hello")
    assert result.exit_code == 2
    assert "KIND/NAME" in result.stderr


@contextlib.contextmanager
def _interruptible():
    """Restores SIGINT for children: a shell starts background jobs with SIGINT ignored, and they pass it on."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_events_are_watched_until_ctrl_c(api):
    def event(number: int):
        return {"id": number, "at": now_text(), "reason": f"r{number}", "message": "m", "objects": []}

    api.objects["events"]["1"] = event(1)
    words = ["--url", api.url, "--api-key", api.key, "events", "-w", "-o", "json"]
    with _interruptible():
        watching = subprocess.Popen([sys.executable, "-P", "-m", "cli", *words], stdout=subprocess.PIPE, text=True)
    try:
        assert json.loads(watching.stdout.readline())["id"] == 1
        api.objects["events"] = {"3": event(3), "2": event(2), "1": event(1)}
        assert [json.loads(watching.stdout.readline())["id"] for _ in range(2)] == [2, 3]
        watching.send_signal(signal.SIGINT)
        watching.wait(20)
        assert watching.returncode == 0
    finally:
        watching.kill()
        watching.wait(10)
        watching.stdout.close()
