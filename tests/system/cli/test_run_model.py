"""`gpuward run hf:ORG/MODEL` on real processes: from a hub's model to a chat on a terminal, and `--rm` at its end."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from support.builders.model_files import safetensors
from support.processes.cluster import Cluster
from support.standins.chat_terminal import ChatTerminal
from support.standins.download_hub import DownloadHub, running_download_hub

MODEL = "hf:org/Tiny-Llama"
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}
FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "model.safetensors": safetensors({"model.embed_tokens.weight": ("BF16", [1000, 64], 128_000)}),
}
# Stands in for a server: it serves only what is in the cache.
PROGRAM = """#!{python}
import os, sys
from huggingface_hub import snapshot_download
snapshot_download("org/Tiny-Llama", local_files_only=True)
port = sys.argv[sys.argv.index("--port") + 1]
name = sys.argv[sys.argv.index("--served-model-name") + 1]
os.execv({python!r}, [{python!r}, "-P", "-m", "agent.simulated_engine", "--port", port, "--model", name])
"""


@pytest.mark.cases
async def test_a_model_of_a_hub_is_run_chatted_with_and_removed(cluster: Cluster, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "vllm").write_text(PROGRAM.format(python=sys.executable))
    (programs / "vllm").chmod(0o755)
    with running_download_hub(DownloadHub({"org/Tiny-Llama": FILES})) as hub:
        await cluster.start_controller(HF_ENDPOINT=hub.url)
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        await cluster.start_agent("gpu-1", host={"engines": ["vllm"]}, PATH=path, HF_ENDPOINT=hub.url)
        await asyncio.to_thread(_chat, cluster)
        await cluster.gone("tiny-llama")
    fetched = {path.rsplit("/", 1)[1] for path, _, _ in hub.asked}
    assert set(FILES) <= fetched


def _chat(cluster: Cluster) -> None:
    lines = (cluster.data_dir / "client.env").read_text().splitlines()
    client = dict(line.split("=", 1) for line in lines)
    words = "--url", client["GPUWARD_URL"], "--api-key", client["GPUWARD_API_KEY"], "run", MODEL, "--rm"
    with ChatTerminal(*words) as terminal:
        terminal.until("deployment/tiny-llama created")
        terminal.until(">>> ", 60)
        terminal.type("hello there\n")
        terminal.until("hello there")
        terminal.until(">>> ")
        terminal.type("\x04")
        terminal.until("deployment/tiny-llama deleted")
        assert terminal.process.wait(30) == 0
