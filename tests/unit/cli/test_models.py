"""`gpuward models`: which models there are, their names and states, where they run and are cached."""

import json
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.builders.api_objects import Json, deployment, instance, now_text, worker

QWEN, TINY = "hf:Qwen/Qwen3-0.6B", "hf:org/tiny"
OLD, NEW = "a" * 40, "b" * 40


def cached(name: str, commit: str, size_bytes: int = 2**30) -> Json:
    snapshot = {"commit": commit, "names": ["main"], "size_bytes": size_bytes, "used_at": now_text(60), "in_use": False}
    return {
        "name": name, "size_bytes": size_bytes, "used_at": now_text(60), "in_use": False, "revisions": {"main": commit},
        "snapshots": [snapshot],
    }  # fmt: skip


@pytest.fixture
def filled(api):
    serving = {"aliases": ["gpt"], "adapters": {"legal": "hf:org/lora"}}
    chat = deployment("chat", spec={"model": QWEN, "serving": serving, "engine": "vllm"}, ready=1,
                      model_commits={"Qwen/Qwen3-0.6B@main": NEW}, engines=["vllm"])  # fmt: skip
    night = deployment(
        "night", "asleep", spec={"model": f"{TINY}@v2", "engine": "auto", "replicas": {"min": 0, "max": 1}}
    )
    local = deployment("local", "stopped", spec={"model": "gguf:/models/a.gguf", "engine": "llama-cpp"})
    job = deployment("job", spec={"engine": "custom"})
    api.add(chat, night, local, job, instance(chat, 1, worker="gpu-a1"), instance(chat, 2, "pending"))
    api.add(*(worker(f"gpu-a{n}") for n in range(1, 4)))
    api.caches = {
        "gpu-a1": [cached(QWEN, NEW), cached("hf:org/unused", OLD)],
        "gpu-a2": [cached(QWEN, OLD)],
        "gpu-a3": [],
    }
    return api


def rows(text: str) -> dict[str, list[str]]:
    titles, *lines = [line.split("  ") for line in text.splitlines()]
    assert titles[0] == "NAME"
    return {line[0]: [cell.strip() for cell in line if cell.strip()] for line in lines}


@pytest.mark.usefixtures("filled")
def test_each_model_has_its_state_names_and_workers(gpuward):
    done = gpuward("models")
    assert done.exit_code == 0
    found = rows(done.stdout)
    assert list(found) == ["chat", "local", "night", "-"]
    assert found["chat"][:7] == [
        "chat", "running", "1/1", QWEN, "gpt, legal", "gpu-a1", "gpu-a1, gpu-a2 (another revision)",
    ]  # fmt: skip
    assert found["night"][1] == "asleep"
    assert found["local"][1] == "stopped"
    assert found["-"][1:3] == ["cached", "-"]
    assert "hf:org/unused" in found["-"]
    assert "job" not in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("name", ["chat", "gpt", "legal", QWEN])
@pytest.mark.usefixtures("filled")
def test_a_model_is_named_by_each_of_its_names(gpuward, name):
    assert list(rows(gpuward("models", name).stdout)) == ["chat"]


@pytest.mark.usefixtures("filled")
def test_an_unknown_name_has_advice(gpuward):
    done = gpuward("models", "chta")
    assert done.exit_code == 3
    assert "did you mean chat?" in done.stderr


@pytest.mark.usefixtures("filled")
def test_wide_has_sizes_and_local_times(gpuward):
    title, first = gpuward("models", "chat", "-o", "wide").stdout.splitlines()
    for column in ("ENGINE", "SIZE", "LAST USED", "CREATED"):
        assert column in title
    assert "vllm" in first
    assert "1 GiB" in first


@pytest.mark.usefixtures("filled")
def test_programs_get_one_object_for_each(gpuward):
    items = json.loads(gpuward("models", "-o", "json").stdout)["items"]
    chat = items[0]
    assert (chat["name"], chat["deployment"], chat["model"], chat["state"]) == ("chat", "chat", QWEN, "running")
    assert chat["aliases"] == ["gpt", "legal"]
    assert chat["running_on"] == ["gpu-a1"]
    assert [(on["worker"], on["current"], on["commits"]) for on in chat["cached"]] == [
        ("gpu-a1", True, [NEW]),
        ("gpu-a2", False, [OLD]),
    ]
    assert (items[-1]["name"], items[-1]["deployment"]) == ("hf:org/unused", None)
    assert gpuward("models", "-o", "name").stdout.splitlines()[0] == "model/chat"
    assert gpuward("models", "-o", "jsonpath={.items[0].state}").stdout == "running\n"


def test_a_cache_that_cannot_be_read_is_named(gpuward, filled):
    del filled.caches["gpu-a2"]
    done = gpuward("models")
    assert done.exit_code == 0
    assert "gpu-a2" in done.stderr
    assert "gpu-a1" not in done.stderr


@contextmanager
def dead_controller() -> Iterator[str]:
    """The address of a server that ends each connection a moment after it was opened."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            time.sleep(0.02)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_of_two_controllers_the_dead_one_hides_no_cache(gpuward, api):
    workers = [f"gpu-a{n:02}" for n in range(60)]
    api.add(*map(worker, workers))
    away = workers[::6]
    api.caches = {name: [cached(QWEN, NEW)] for name in workers if name not in away}
    with dead_controller() as dead:
        done = gpuward("models", "-o", "json", GPUWARD_URL=f"{dead},{api.url}")
    assert done.exit_code == 0
    (item,) = json.loads(done.stdout)["items"]
    assert {on["worker"] for on in item["cached"]} == set(workers) - set(away)


def test_a_worker_that_is_away_is_named_without_a_wait(gpuward, filled):
    filled.add(worker("gpu-a2", "lost", connected=False))
    done = gpuward("models")
    assert done.exit_code == 0
    assert "gpu-a2" in done.stderr
    assert "gpu-a1" not in done.stderr
    assert not [path for _, path, _, _ in filled.asked if path.endswith("/gpu-a2/cache")]


def test_without_models(gpuward, api):
    done = gpuward("models")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "no models found" in done.stderr
    assert api.asked
