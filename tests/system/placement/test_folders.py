"""Cases of models that are folders: which files count."""

import json
from pathlib import Path

import pytest

from support.builders.model_files import sparse_safetensors
from support.processes.cluster import Json
from support.processes.placement_site import Site, gpus_of

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.cases]
GIB = 2**30
BERT = {
    "architectures": ["BertModel"], "model_type": "bert", "hidden_size": 768, "intermediate_size": 3072,
    "num_attention_heads": 12, "num_hidden_layers": 12, "vocab_size": 30522, "max_position_embeddings": 512,
    "torch_dtype": "float32",
}  # fmt: skip
QWEN = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 8192, "intermediate_size": 29568,
    "num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 80, "vocab_size": 152064,
    "max_position_embeddings": 32768, "torch_dtype": "bfloat16",
}  # fmt: skip


def folder_of(site: Site, name: str, config: Json, size: int) -> Path:
    """A model's folder with sparse weights."""
    folder = site.cluster.folder / name
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "config.json").write_text(json.dumps(config))
    sparse_safetensors(folder / "model.safetensors", size)
    return folder


async def test_c05_weights_in_two_formats_are_counted_once(site: Site) -> None:
    await site.hosts("w24a")
    folder = folder_of(site, "bge", BERT, 437955512)
    wanted = {"name": "case", "engine": "vllm", "model": f"path:{folder}"}
    (alone,) = await site.plan(wanted)
    with (folder / "pytorch_model.bin").open("wb") as file:
        file.truncate(437990000)
    (both,) = await site.plan({**wanted, "args": {"seed": 1}})
    assert both["gpus"] == alone["gpus"] == gpus_of({"w24a": [0]})
    assert both["need"]["parts"]["weights"] == alone["need"]["parts"]["weights"] == -(-437955512 // 2**20)
    applied = (await site.applied(wanted))["status"]
    assert applied["gpus"] == alone["gpus"]


async def test_c15_adapters_are_added_to_the_weights(site: Site) -> None:
    await site.hosts("w24a")
    folder, adapter = folder_of(site, "large", QWEN, 56 * GIB), folder_of(site, "adapter", {}, 8 * GIB)
    args = {"enable-lora": True, "lora-modules": [f"extra={adapter}"]}
    wanted = {"name": "case", "engine": "vllm", "model": f"path:{folder}", "args": args}
    (item,) = await site.plan(wanted)
    assert item["explain"]["rejected"] == {"need_gt_capacity": 1}
    assert item["explain"]["nearest"]["need_gib"] >= 64
    applied = (await site.applied(wanted))["status"]
    assert (applied["reason"], applied["explain"]["rejected"]) == ("need_gt_capacity", {"need_gt_capacity": 1})


async def test_a_broken_model_that_was_mended_is_read_again_after_a_stop_and_a_start(site: Site) -> None:
    await site.hosts("w24a")
    folder = folder_of(site, "mended", BERT, 437955512)
    (folder / "config.json").write_text("{")
    await site.cluster.apply("mended", engine="vllm", model=f"path:{folder}")

    async def is_in_phase(phase: str, words: str) -> bool:
        found = [one["status"] for one in await site.cluster.instances("mended")]
        return [s["phase"] for s in found] == [phase] and words in found[0]["message"]

    await site.cluster.until(lambda: is_in_phase("failed", "then stop and start the deployment"), "it cannot be read")
    (folder / "config.json").write_text(json.dumps(BERT))
    await site.cluster.post("/deployments/mended/stop")

    async def gone() -> bool:
        return not await site.cluster.instances("mended")

    await site.cluster.until(gone, "it is stopped")
    await site.cluster.post("/deployments/mended/start")

    async def placed() -> bool:
        return [one["status"]["gpus"] for one in await site.cluster.instances("mended")] == [gpus_of({"w24a": [0]})]

    await site.cluster.until(placed, "it is read and placed")
