"""A model of a hub on real processes: fetched with the deployment's token, told of, shared, kept while it runs."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from support.builders.model_files import with_header
from support.processes.cluster import Cluster
from support.standins.download_hub import COMMIT, DownloadHub, running_download_hub

SIZE = 2_000_000
HEADER = {"w": {"dtype": "BF16", "shape": [SIZE // 2], "data_offsets": [0, SIZE]}}
FILES = {"config.json": b'{"model_type": "llama"}', "model.safetensors": with_header(HEADER) + bytes(SIZE)}
# Stands in for a server: it serves only what is in the cache.
PROGRAM = """#!{python}
import os, sys
from huggingface_hub import snapshot_download
snapshot_download("org/model", local_files_only=True)
port = sys.argv[sys.argv.index("--port") + 1]
os.execv({python!r}, [{python!r}, "-P", "-m", "agent.simulated_engine", "--port", port, "--model", "org/model"])
"""
WANTED: dict[str, Any] = {
    "engine": "vllm",
    "model": "hf:org/model",
    "resources": {"gpus": 1, "gpu_memory": "8GiB"},
    "env": {"HF_TOKEN": "good"},
}


@pytest.mark.cases
async def test_a_gated_model_is_fetched_once_and_kept_while_it_runs(cluster: Cluster, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "vllm").write_text(PROGRAM.format(python=sys.executable))
    (programs / "vllm").chmod(0o755)
    with running_download_hub(DownloadHub({"org/model": FILES}, tokens={"org/model": {"good"}}, pause_s=0.08)) as hub:
        await cluster.start_controller(HF_ENDPOINT=hub.url, HF_TOKEN="good", GPUWARD_RESTART_BACKOFF_S="0.2")
        env = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "HF_ENDPOINT": hub.url}
        cache = tmp_path / "models"
        await cluster.start_agent("gpu-1", host={"engines": ["vllm"]}, GPUWARD_AGENT_CACHE_DIR=str(cache), **env)

        async def told() -> str:
            found = [one["status"] for one in await cluster.instances("chat")]
            return next(
                (one["message"] for one in found if one["reason"] == "fetching" and " of " in one["message"]), ""
            )

        await cluster.apply("chat", replicas=2, **WANTED)
        words = ""

        async def says_how_much() -> bool:
            nonlocal words
            words = await told()
            return bool(words)

        await cluster.until(says_how_much, "progress stands in the reason", 30)
        assert words.startswith("fetching hf:org/model: ")
        await cluster.running("chat")
        whole = [asked for path, asked, _ in hub.asked if path.endswith("/model.safetensors") and not asked]
        assert len(whole) == 1, "both replicas share one download"
        assert not [one for one in await cluster.instances("chat") if one["status"]["message"]]

        await cluster.apply("other", **{**WANTED, "env": {}})

        async def refused() -> bool:
            found = [one["status"]["message"] for one in await cluster.instances("other")]
            return any("is gated: request access on the hub, and set HF_TOKEN" in one for one in found)

        await cluster.until(refused, "another deployment without the token does not get it", 30)
        await cluster.delete("other")

        (model,) = (await cluster.get("/workers/gpu-1/cache"))["items"]
        assert (model["name"], model["in_use"], model["revisions"]["main"]) == ("hf:org/model", True, COMMIT)
        assert model["size_bytes"] == sum(map(len, FILES.values()))
        assert (await cluster.post("/workers/gpu-1/cache/prune", {}))["items"] == []
        await cluster.delete("chat")

        async def pruned() -> bool:
            return bool((await cluster.post("/workers/gpu-1/cache/prune", {"models": ["hf:org/model"]}))["items"])

        await cluster.until(pruned, "nothing uses it any more", 30)
        assert not list(cache.glob("models--*"))


@pytest.mark.cases
async def test_a_stop_ends_a_fetch_and_a_dead_agents_fetch_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "vllm").write_text(PROGRAM.format(python=sys.executable))
    (programs / "vllm").chmod(0o755)
    with running_download_hub(DownloadHub({"org/model": FILES}, pause_s=0.2)) as hub:
        await cluster.start_controller(HF_ENDPOINT=hub.url, GPUWARD_RESTART_BACKOFF_S="0.2")
        env = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "HF_ENDPOINT": hub.url}
        env["GPUWARD_AGENT_CACHE_DIR"] = str(tmp_path / "models")
        await cluster.start_agent("gpu-1", host={"engines": ["vllm"]}, **env)
        await cluster.apply("chat", **WANTED)
        await cluster.until(lambda: hub.sent > 300_000, "it is being fetched", 30)
        await cluster.delete("chat")

        async def gone() -> bool:
            return not await cluster.instances("chat")

        await cluster.until(gone, "a stop waits for no fetch", 10)
        sent = hub.sent
        await asyncio.sleep(1.0)
        assert hub.sent <= sent + 100_000, "the fetch ended with its last process"

        await cluster.apply("chat", **WANTED)
        await cluster.until(lambda: hub.sent > sent + 300_000, "it goes on", 30)
        cluster.kill("gpu-1")
        hub.pause_s = 0.0
        await cluster.start_agent("gpu-1", host={"engines": ["vllm"]}, **env)
        await cluster.running("chat")
        assert hub.sent < 2 * SIZE, "what was there was not fetched again"
