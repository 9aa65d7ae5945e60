"""A real llama-server: what it serves through the gateway, how it ends, and what it takes against the estimate.

It is built by `make test-engines-all`; without the build these tests are skipped.
"""

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from openai import APIError, NotFoundError

from agent.engine_builds import llama_cpp_lacks
from controller.domain.model_facts import facts_from_json
from controller.engines.base import Launch
from controller.engines.llama_cpp_memory import Model
from controller.engines.registry import engine_for, validate
from controller.model_files.analysis import model_facts
from engines.build_llama_server import built
from engines.deployed import apply, gpuward, openai_client
from schemas.engine_builds import LLAMA_CPP_ON_CPU
from support.builders.engine_specs import spec
from support.builders.tiny_gguf import make_tiny_gguf
from support.database.postgres import reachable_folder
from support.processes.up_process import Up

ROOT = Path(__file__).parents[2]
PROGRAM = built((ROOT / "requirements-flags-servers.lock").read_text(), ROOT / ".engines")
MESSAGES: Any = [{"role": "user", "content": "Say something."}]

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(not PROGRAM.exists(), reason="llama-server is not built: make test-engines-all"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{PROGRAM.parent}:{before}"
    try:
        with reachable_folder() as folder, Up(folder, "--agents", "1", "--port", "0") as running:
            running.wait_until_ready(120)
            yield running
            code, _ = running.stop()
            assert (code, running.leftovers()) == (0, [])
    finally:
        os.environ["PATH"] = before


@pytest.fixture
def served(up: Up, model: Path) -> Iterator[psutil.Process]:
    """The process of a deployment `tiny`; it is gone afterwards, and so is its process."""
    apply(up, manifest(model))
    (engine,) = up.engines()
    yield engine
    gpuward(up, "delete", "--wait", "tiny")
    assert up.engines() == []


def manifest(model: Path, **args: Any) -> dict[str, Any]:
    return {
        "kind": "Deployment", "name": "tiny", "engine": "llama-cpp", "model": f"gguf:{model}", "drain_time": "60s",
        "args": {"n-gpu-layers": 0, "ctx-size": 4096, "parallel": 2, "cache-ram": 16} | args,
    }  # fmt: skip


def until(holds: Callable[[], object], limit_s: float = 90) -> None:
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.3)


def instance(up: Up) -> dict[str, Any]:
    (one,) = json.loads(gpuward(up, "get", "instances", "-o", "json"))["items"]
    found: dict[str, Any] = one["status"]
    return found


def test_it_answers_and_streams_under_the_deployments_name(up: Up, served: psutil.Process) -> None:
    assert served.is_running()
    with openai_client(up) as client:
        whole = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=12, temperature=0)
        assert whole.model == "tiny"
        assert whole.usage is not None
        assert 1 <= whole.usage.completion_tokens <= 12
        chunks = list(
            client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=12, temperature=0, stream=True)
        )
        assert {chunk.model for chunk in chunks} == {"tiny"}
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == (whole.choices[0].message.content or "")
        with pytest.raises(NotFoundError):
            client.chat.completions.create(model="unknown", messages=MESSAGES)


def _long(up: Up, tokens: int = 1500) -> Any:
    return openai_client(up).chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=tokens, stream=True, extra_body={"ignore_eos": True}
    )


def _processing(engine: psutil.Process) -> float:
    line = engine.cmdline()
    port = line[line.index("--port") + 1]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        (value,) = re.findall(r"^llamacpp:requests_processing (\S+)", answer.read().decode(), re.MULTILINE)
    return float(value)


def test_gauges_show_a_stream_and_a_caller_that_leaves_ends_it(up: Up, served: psutil.Process) -> None:
    stream = _long(up)
    next(iter(stream))
    assert _processing(served) == 1
    stream.close()
    until(lambda: _processing(served) == 0)


def test_a_stream_in_flight_is_drained(up: Up, model: Path) -> None:
    apply(up, manifest(model))
    stream = iter(_long(up, 400))
    next(stream)
    ending = threading.Thread(target=gpuward, args=(up, "delete", "--wait", "tiny"))
    ending.start()
    rest = list(stream)
    ending.join(120)
    assert rest[-1].choices == [] or rest[-1].choices[0].finish_reason == "length"
    assert up.engines() == []


def test_death_at_a_request_is_an_error_and_a_new_start(up: Up, served: psutil.Process) -> None:
    stream = iter(_long(up))
    next(stream)
    served.send_signal(signal.SIGKILL)
    with pytest.raises(APIError):
        list(stream)
    until(lambda: instance(up)["phase"] == "running" and [e.pid for e in up.engines()] not in ([], [served.pid]))
    with openai_client(up) as client:
        until(lambda: _answers(client))


def _answers(client: Any) -> bool:
    try:
        return bool(client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=2).choices)
    except APIError:
        return False


def test_a_wrong_flag_says_so(up: Up, model: Path) -> None:
    gpuward(up, "apply", "-f", "-", manifest=manifest(model, frobnicate=3))
    until(lambda: instance(up)["phase"] == "failed")
    assert "frobnicate" in json.dumps(instance(up))
    assert "engine_usage" in json.dumps(instance(up))
    gpuward(up, "delete", "--wait", "tiny")


async def test_this_build_uses_no_gpu_and_says_so() -> None:
    assert await llama_cpp_lacks(str(PROGRAM), os.environ) == (LLAMA_CPP_ON_CPU,)


_PRINTED = re.compile(r"(model|KV|compute) buffer size = +([\d.]+) MiB")


def _printed(wanted: Any, folder: Path) -> dict[str, float]:
    """MiB that llama-server says it takes at the load, by kind."""
    validate(wanted)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    argv = engine_for(wanted).process(wanted, Launch(context=4096, sequences=2)).argv
    log = folder / "log"
    with log.open("w") as out:
        line = [str(PROGRAM), *(part.replace("{port}", port) for part in argv[1:]), "--verbosity", "4"]
        process = subprocess.Popen(line, stdout=out, stderr=subprocess.STDOUT)
        try:
            until(lambda: "listening on http" in log.read_text() or process.poll() is not None)
        finally:
            process.kill()
            process.wait(20)
    found: dict[str, float] = {}
    for kind, size in _PRINTED.findall(log.read_text()):
        found[kind] = found.get(kind, 0.0) + float(size)
    assert set(found) == {"model", "KV", "compute"}, log.read_text()[-3000:]
    return found


@pytest.mark.parametrize(
    "args", [{}, {"ctx-size": 65536, "parallel": 1}, {"cache-type-k": "q8_0", "cache-type-v": "q8_0"}]
)
def test_what_it_takes_is_what_was_estimated(tmp_path: Path, model: Path, args: dict[str, Any]) -> None:
    wanted = spec("llama-cpp", model=f"gguf:{model}", args={"n-gpu-layers": 0, "ctx-size": 8192, "parallel": 2} | args)
    printed = _printed(wanted, tmp_path)
    facts = facts_from_json(model_facts({"gguf": str(model)}))
    context = wanted.args["ctx-size"] // wanted.args["parallel"]
    parts = Model(wanted, facts, None).share(1, context, wanted.args["parallel"]).parts  # as on a GPU
    assert parts["weights"] == pytest.approx(printed["model"], abs=1.1)
    assert parts["cache"] == pytest.approx(printed["KV"], rel=0.02, abs=1.1)
    assert printed["compute"] * 0.7 - 2 <= parts["compute"] <= printed["compute"] * 1.6 + 4
