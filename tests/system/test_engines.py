"""Model servers as hosts have them installed: which is chosen, its arguments, and its answers."""

import asyncio
import json
import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from support.builders.model_files import with_header
from support.processes.cluster import Cluster

WEIGHTS = 1_503_264_768  # of Qwen3-0.6B; a hole in the file, not bytes on disk
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "bfloat16", "num_hidden_layers": 28,
    "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
}  # fmt: skip
# Stands in for a server: records its arguments, and serves as the simulated engine does.
PROGRAM = """#!{python}
import json, os, sys
with open({log!r}, "a") as log:
    env = {{name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")}}
    log.write(json.dumps([os.path.basename(sys.argv[0]), sys.argv[1:], env]) + "\\n")
if "--headless" in sys.argv:
    os.execvp("sleep", ["sleep", "600"])
port = sys.argv[sys.argv.index("--port") + 1]
os.execv({python!r}, [{python!r}, "-P", "-m", "agent.simulated_engine", "--port", port, "--model", "m"])
"""


def model(folder: Path) -> Path:
    folder.mkdir()
    header = {"w": {"dtype": "BF16", "shape": [WEIGHTS // 2], "data_offsets": [0, WEIGHTS]}}
    file = folder / "model.safetensors"
    file.write_bytes(with_header(header))
    os.truncate(file, file.stat().st_size + WEIGHTS)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def install(folder: Path, log: Path, *names: str) -> str:
    """A search path that begins with these programs."""
    folder.mkdir()
    for name in names:
        program = folder / name
        program.write_text(PROGRAM.format(python=sys.executable, log=str(log)))
        program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


async def ask(cluster: Cluster, name: str) -> int:
    body = {"model": name, "messages": [{"role": "user", "content": "Hello"}]}
    async with cluster.session.post("/v1/chat/completions", json=body) as response:
        return response.status


@pytest.mark.cases
async def test_the_best_engine_that_a_host_has_serves_the_model(cluster: Cluster, tmp_path: Path) -> None:
    folder, log = model(cluster.folder / "model"), tmp_path / "started"
    path = install(tmp_path / "bin", log, "vllm", "transformers")
    await cluster.start_controller(GPUWARD_RESTART_BACKOFF_S="0.2")
    await cluster.start_agent("plain", gpus=1, host={"engines": ["transformers"]}, PATH=path)
    await cluster.start_agent("good", gpus=2, memory="80GiB", host={"engines": ["vllm", "transformers"]}, PATH=path)
    old = [{"model": "Tesla T4", "memory": "80GiB", "count": 1, "compute_capability": "7.5"}]
    await cluster.start_agent("old", host={"engines": ["vllm"], "gpus": old}, PATH=path)

    def started() -> list[Any]:
        return [json.loads(line) for line in log.read_text().splitlines()]

    await cluster.apply("chat", engine="auto", model=f"path:{folder}", placement={"gpus": ["good:1"]})
    await cluster.running("chat")
    (instance,) = await cluster.instances("chat")
    (gpu,) = [claim for claim in instance["status"]["claims"] if claim["kind"] == "gpu"]
    assert (instance["status"]["worker"], instance["status"]["engine"]) == ("good", "vllm")
    assert gpu["memory_mib"] == 1434 + 14336 + 537 + 576 + 512  # as on the page of estimates
    fraction = (gpu["memory_mib"] - 576 - 512) / (80 * 1024)
    ((program, argv, env),) = started()
    port = argv[argv.index("--port") + 1]
    assert (program, argv) == (
        "vllm",
        ["serve", str(folder), "--host", "127.0.0.1", "--port", port, "--gpu-memory-utilization", f"{fraction:.4f}",
         "--max-model-len", "8192", "--max-num-seqs", "256", "--served-model-name", "chat", str(folder)],
    )  # fmt: skip
    assert env == {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert await ask(cluster, "chat") == 200

    cluster.engines()[instance["name"]].kill()
    await cluster.until(lambda: len(started()) == 2, "it is started again", 40)
    assert started()[1][1][6:] == argv[6:], "in place it is started as before"

    await cluster.apply("plain", engine="auto", model=f"path:{folder}", placement={"workers": ["plain"]})
    await cluster.running("plain")
    (instance,) = await cluster.instances("plain")
    assert instance["status"]["engine"] == "transformers"
    assert started()[-1][0] == "transformers"
    assert await ask(cluster, "plain") == 200

    # The engine is not installed; the GPU lacks bfloat16, and FP8 for the cache.
    asked = {"model": f"path:{folder}", "engine": "vllm"}
    for number, (placement, args, code) in enumerate(
        (
            ({"workers": ["plain"]}, {}, "engine_missing"),
            ({"workers": ["old"]}, {}, "compute_capability"),
            ({"workers": ["old"]}, {"dtype": "half", "kv-cache-dtype": "fp8"}, "compute_capability"),
        )
    ):
        manifest = {"kind": "Deployment", "name": f"no-{number}", **asked, "args": args, "placement": placement}
        (item,) = (await cluster.post("/plan", {"manifests": [manifest]}))["items"]
        assert item["explain"]["rejected"].get(code) == 1, item
    manifest = {
        "kind": "Deployment",
        "name": "half",
        **asked,
        "args": {"dtype": "half"},
        "placement": {"workers": ["old"]},
    }
    (item,) = (await cluster.post("/plan", {"manifests": [manifest]}))["items"]
    assert item["fits"]
    await cluster.audit()


async def test_auto_goes_on_where_the_program_of_an_engine_is_missing(cluster: Cluster, tmp_path: Path) -> None:
    """One host names an engine that is not there; the other one names none, and reports what is installed."""
    folder, log = model(cluster.folder / "model"), tmp_path / "started"
    path = install(tmp_path / "bin", log, "transformers")
    await cluster.start_controller(GPUWARD_RESTART_BACKOFF_S="0.5")
    named = {"engines": ["vllm", "transformers"]}
    async with asyncio.TaskGroup() as group:
        group.create_task(cluster.start_agent("named", gpus=1, memory="80GiB", host=named, PATH=path))
        group.create_task(cluster.start_agent("plain", gpus=1, memory="80GiB", PATH=path))
    for name in ("named", "plain"):
        served = {"engine": "auto", "model": f"path:{folder}", "placement": {"workers": [name]}}
        await cluster.apply(name, **served)
        await cluster.running(name)
        (instance,) = await cluster.instances(name)
        assert (instance["status"]["engine"], instance["status"]["worker"]) == ("transformers", name)
        status = (await cluster.get(f"/workers/{name}"))["status"]
        assert [one["name"] for one in status["engines"]] == ["transformers"]
        assert await ask(cluster, name) == 200
    events = (await cluster.get("/events"))["items"]
    failed = [one["subjects"] for one in events if one["evidence"].get("reason") == "engine_missing"]
    tried = {subject["name"] for subjects in failed for subject in subjects if subject["kind"] == "worker"}
    assert tried == {"named"}, "only where a file names what is not there a start is tried"
    await cluster.apply("other", engine="sglang", model=f"path:{folder}")

    async def named_missing() -> bool:
        statuses = [one["status"] for one in await cluster.instances("other")]
        explained = [one["explain"]["message"] for one in statuses if one["reason"] == "engine_missing"]
        return any("pip install" in message for message in explained)

    await cluster.until(named_missing, "it says what is missing")
    await cluster.audit()


@pytest.mark.cases
async def test_a_model_too_big_for_one_host_is_served_by_two(cluster: Cluster, tmp_path: Path) -> None:
    folder, log = model(cluster.folder / "model"), tmp_path / "started"
    path = install(tmp_path / "bin", log, "vllm")
    await cluster.start_controller()
    for name in ("a", "b"):
        await cluster.start_agent(name, gpus=1, memory="12GiB", PATH=path)
    await cluster.apply("big", engine="vllm", model=f"path:{folder}", resources={"max_workers": 2})
    await cluster.running("big")
    (instance,) = await cluster.instances("big")
    status = instance["status"]
    assert (sorted(status["workers"]), len(status["gpus"])) == (["a", "b"], 2)
    assert {name: status["layout"][name] for name in ("workers", "tp", "pp", "dp")} == {
        "workers": 2, "tp": 1, "pp": 2, "dp": 1,
    }  # fmt: skip
    ranks = {}
    for _, argv, env in (json.loads(line) for line in log.read_text().splitlines()):
        assert env["CUDA_VISIBLE_DEVICES"] == "0"
        flags = dict(pairwise(argv))
        ranks[int(flags["--node-rank"])] = ("--headless" in argv, flags)
    (leads, one), (follows, other) = ranks[0], ranks[1]
    assert (leads, follows) == (False, True)
    for flag in ("--nnodes", "--pipeline-parallel-size", "--master-addr", "--master-port", "--gpu-memory-utilization"):
        assert one[flag] == other[flag]
    assert (one["--nnodes"], one["--pipeline-parallel-size"], one["--master-addr"]) == ("2", "2", "127.0.0.1")
    assert 10_000 <= int(one["--master-port"]) < 18_000
    assert await ask(cluster, "big") == 200
    await cluster.audit()
