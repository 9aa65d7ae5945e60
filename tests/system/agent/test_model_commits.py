"""One revision runs one commit of its model, also after its branch has moved and the hub has lost the commit."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from support.processes.cluster import Cluster
from support.standins.download_hub import COMMIT, DownloadHub, running_download_hub
from system.cli.test_run_model import FILES

REPO, KEY, MOVED = "org/Tiny-Llama", "org/Tiny-Llama@main", "d" * 40
# Stands in for a server: it serves only what is in the cache, and tells of which commit that is.
PROGRAM = """#!{python}
import os, sys
from huggingface_hub import snapshot_download
revision = sys.argv[sys.argv.index("--revision") + 1] if "--revision" in sys.argv else "main"
print("serves", snapshot_download("org/Tiny-Llama", revision=revision, local_files_only=True), flush=True)
port = sys.argv[sys.argv.index("--port") + 1]
os.execv({python!r}, [{python!r}, "-P", "-m", "agent.simulated_engine", "--port", port, "--model", "chat"])
"""
CHAT: dict[str, Any] = {
    "engine": "vllm", "model": f"hf:{REPO}", "resources": {"gpus": 1, "gpu_memory": "8GiB"}, "drain_time": "1s",
}  # fmt: skip


async def commits_of(cluster: Cluster) -> dict[str, str]:
    """The commit that each running instance serves, by its log."""
    found = {}
    for one in await cluster.instances("chat"):
        if one["status"]["phase"] == "running":
            async with cluster.session.get(f"{cluster.url}/api/v1/instances/{one['name']}/logs") as answer:
                text = await answer.text()
            found[one["name"]] = text.partition("/snapshots/")[2][:40]
    return found


@pytest.mark.cases
async def test_one_revision_runs_one_commit(cluster: Cluster, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "vllm").write_text(PROGRAM.format(python=sys.executable))
    (programs / "vllm").chmod(0o755)
    with running_download_hub(DownloadHub({REPO: FILES})) as hub:
        await cluster.start_controller(HF_ENDPOINT=hub.url, GPUWARD_RESTART_BACKOFF_S="0.2")
        env = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "HF_ENDPOINT": hub.url}
        await cluster.start_agent(
            "gpu-1", gpus=4, host={"engines": ["vllm"]}, GPUWARD_AGENT_CACHE_DIR=str(tmp_path / "models-1"), **env
        )
        await cluster.apply("chat", **CHAT)
        await cluster.running("chat")
        assert (await cluster.get("/deployments/chat"))["status"]["model_commits"] == {KEY: COMMIT}
        (head,) = (await cluster.get("/deployments/chat/models"))["items"]
        assert (head["commit"], head["head"], head["moved"]) == (COMMIT, COMMIT, False)

        hub.commits[REPO] = MOVED  # and nothing of the old commit is left there
        await cluster.post("/deployments/chat/scale", {"replicas": 2})

        async def all_run(number: int, commit: str) -> bool:
            found = await commits_of(cluster)
            return len(found) == number == len(await cluster.instances("chat")) and set(found.values()) == {commit}

        await cluster.until(lambda: all_run(2, COMMIT), "both replicas run the commit of their revision", 40)

        await cluster.post("/deployments/chat/restart", {"pull": True})
        await cluster.until(lambda: all_run(2, MOVED), "the new revision runs what the hub has now", 60)
        status = (await cluster.get("/deployments/chat"))["status"]
        assert (status["revision"] > 1, status["model_commits"]) == (True, {KEY: MOVED})

        await cluster.post("/deployments/chat/rollout/undo", {})
        await cluster.until(lambda: all_run(2, COMMIT), "the old revision runs the old weights", 60)
        assert (await cluster.get("/deployments/chat"))["status"]["revision"] == 1

        await cluster.start_agent(
            "gpu-2", gpus=4, host={"engines": ["vllm"]}, GPUWARD_AGENT_CACHE_DIR=str(tmp_path / "models-2"), **env
        )
        await cluster.post("/workers/gpu-1/cordon")
        await cluster.post("/deployments/chat/scale", {"replicas": 3})

        async def named() -> bool:
            return any(one["status"]["reason"] == "model_commit_gone" for one in await cluster.instances("chat"))

        await cluster.until(named, "a host without the commit names the reason", 40)
        assert set((await commits_of(cluster)).values()) == {COMMIT}
    await cluster.audit()
