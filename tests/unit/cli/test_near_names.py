"""A name that does not exist: the error has the name that was probably meant."""

import pytest

from support.builders.api_objects import deployment, gpu, instance, now_text, policy, worker
from support.standins.api import refusal

GPU = "GPU-bd020789-0000-0000-0000-000000000000"
KEY = "6f1c2d3e-0cb4-450a-b18a-f00a9c8fb4d1"


@pytest.fixture
def filled(api):
    chat = deployment("chat")
    api.add(chat, deployment("train"), instance(chat), worker("gpu-a1"), policy("stop-idle"), gpu(GPU, "gpu-a1"))
    api.objects["keys"][KEY] = {"id": KEY, "name": "webapp", "role": "viewer", "created_at": now_text()}
    return api


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["describe", "chta"], "chat"),
        (["describe", "deployment", "chta"], "chat"),
        (["describe", "gpu", "gpu-a1:3"], "gpu-a1:0"),
        (["describe", "gpu-b1"], "gpu-a1"),
        (["get", "deployment", "chta"], "chat"),
        (["get", "policy", "stop-ide"], "stop-idle"),
        (["ps", "chta"], "chat"),
        (["logs", "chta"], "chat"),
        (["logs", "chta", "--all"], "chat"),
        (["stop", "chta"], "chat"),
        (["start", "Chat"], "chat"),
        (["scale", "chta", "2"], "chat"),
        (["wake", "chta"], "chat"),
        (["restart", "chta"], "chat"),
        (["wait", "chta"], "chat"),
        (["wait", "chta", "--for", "stopped"], "chat"),
        (["rollout", "status", "chta"], "chat"),
        (["delete", "chta"], "chat"),
        (["delete", "chta", "--wait"], "chat"),
        (["delete", "policy", "stop-ide"], "stop-idle"),
        (["delete", "worker", "gpu-1"], "gpu-a1"),
        (["cordon", "gpu-1"], "gpu-a1"),
        (["cordon", "gpu-1", "--gpu", "0"], "gpu-a1"),
        (["drain", "gpu-1"], "gpu-a1"),
        (["top", "--once", "--worker", "gpu-1"], "gpu-a1"),
        (["key", "revoke", "webapp"], KEY),
        (["key", "revoke", KEY[:-1]], KEY),
        (["get", "key", "webap"], "webapp"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
@pytest.mark.usefixtures("filled")
def test_the_error_names_what_was_probably_meant(gpuward, words, meant):
    done = gpuward(*words)
    assert done.exit_code == 3
    assert f"did you mean {meant}" in done.stderr.replace("deployment chat", "chat").replace("worker gpu", "gpu")


@pytest.mark.parametrize("words", [["stop", "other"], ["describe", "other"], ["logs", "other"]], ids=" ".join)
@pytest.mark.usefixtures("filled")
def test_a_name_unlike_all_has_no_advice(gpuward, words):
    done = gpuward(*words)
    assert done.exit_code == 3
    assert "did you mean" not in done.stderr


@pytest.mark.usefixtures("filled")
def test_all_of_several_wrong_names_have_their_own_advice(gpuward):
    done = gpuward("stop", "chta", "trian", "chat")
    assert done.exit_code == 3
    assert "deployment/chat stopped" in done.stdout
    assert "did you mean chat?" in done.stderr
    assert "did you mean train?" in done.stderr


def test_a_list_that_the_key_may_not_read_leaves_the_first_error(gpuward, filled):
    def forbid(request):
        name = request.match_info.get("name")
        return refusal(404, "not_found", f"no {name}") if name else refusal(403, "forbidden", "the key may not list")

    async def answer(request):
        return forbid(request)

    filled.refuse = answer
    done = gpuward("stop", "chta")
    assert done.exit_code == 3
    assert "no chta" in done.stderr
    assert "may not" not in done.stderr


@pytest.mark.usefixtures("filled")
def test_events_of_a_name_that_never_was(gpuward):
    done = gpuward("events", "--for", "deployment/chta")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "did you mean chat?" in done.stderr


def test_an_instance_of_restart(gpuward, filled):
    async def refuse(_request):
        return refusal(404, "not_found", "instance 'chat-x' does not exist")

    filled.before = lambda method, _path: setattr(filled, "refuse", refuse if method == "POST" else None)
    done = gpuward("restart", "chat", "--instance", "chat-x")
    assert done.exit_code == 3
    assert "did you mean chat-1?" in done.stderr


def test_a_misspelt_kind(gpuward):
    done = gpuward("get", "deploymnts")
    assert done.exit_code == 2
    assert "did you mean deployments?" in done.stderr


def test_a_misspelt_context(gpuward):
    key = "gpw_x"
    assert gpuward("context", "add", "prod", "--url", "http://127.0.0.1:1", stdin=key).exit_code == 0
    done = gpuward("context", "use", "prdo")
    assert done.exit_code == 3
    assert "did you mean prod?" in done.stderr


def lists_read(api, kind: str) -> int:
    return sum((method, path) == ("GET", f"/api/v1/{kind}") for method, path, _, _ in api.asked)


def test_however_many_names_are_wrong_a_kind_is_listed_once(gpuward, filled):
    done = gpuward("stop", *(f"chta{n}" for n in range(30)))
    assert done.exit_code == 3
    assert done.stderr.count("did you mean chat?") == 30
    assert lists_read(filled, "deployments") == 1


def test_what_goes_while_it_is_deleted_by_labels_needs_no_advice(gpuward, filled):
    gone = [deployment(f"gone-{n}", spec={"labels": {"app": "x"}}) for n in range(3)]
    filled.add(*gone)

    def go(method: str, path: str) -> None:
        if method == "DELETE":
            filled.objects["deployments"].pop(path.rpartition("/")[2])

    filled.before = go
    done = gpuward("delete", "-l", "app=x", "--yes")
    assert done.exit_code == 0, done.output
    assert done.stderr.count("is gone already") == 3
    assert lists_read(filled, "deployments") == 1, "by the selector"


def test_events_of_what_exists_need_no_list(gpuward, filled):
    for about in ("deployment/chat", f"gpu/{GPU}", "worker/gpu-a1"):
        done = gpuward("events", "--for", about)
        assert (done.exit_code, "did you mean" in done.stderr) == (0, False)
    assert [lists_read(filled, kind) for kind in ("deployments", "gpus", "workers")] == [0, 0, 0]


def test_events_of_an_unknown_gpu_list_gpus_once_and_programs_get_no_advice(gpuward, filled):
    assert "did you mean gpu-a1:0?" in gpuward("events", "--for", "gpu/gpu-a1:3").stderr
    assert lists_read(filled, "gpus") == 1
    assert gpuward("events", "--for", "deployment/chta", "-o", "json").stderr == ""
    assert lists_read(filled, "deployments") == 0
