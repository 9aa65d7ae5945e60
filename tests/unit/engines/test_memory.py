"""Memory per GPU: figures of well-known models calculated by hand, and properties of all splits."""

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.model_facts import ModelFacts
from controller.domain.splits import Split
from controller.engines.estimates.memory import (
    Workload,
    activations,
    cache_bytes_per_token,
    cache_per_gpu,
    loaded_bytes,
    weights_per_gpu,
)

ROOT = Path(__file__).resolve().parents[3]
ESTIMATES = runpy.run_path(str(ROOT / "bench" / "estimates.py"))
ENTRIES: dict[str, Any] = {
    entry["name"]: entry for entry in yaml.safe_load((ROOT / "docs" / "models.yaml").read_text(encoding="utf-8"))
}
GIB = 2**30
ONE = Split(1, 1, 1)


def facts(name: str) -> ModelFacts:
    found: ModelFacts = ESTIMATES["facts_of"](ENTRIES[name])
    return found


def work(context: int = 8192, sequences: int = 16, cache_bytes: float = 2) -> Workload:
    return Workload(context, sequences, cache_bytes, batch_tokens=8192, batch_sequences=256)


def cache(model: ModelFacts, split: Split = ONE, **fields: Any) -> float:
    found = cache_per_gpu(model, split, work(**fields))
    assert found is not None
    return found


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "estimates.md").read_text(encoding="utf-8")
    assert page == ESTIMATES["page"](), "run `make estimates`"
    assert ESTIMATES["CATALOG"].read_text(encoding="utf-8") == ESTIMATES["catalog"](), "run `make estimates`"


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        ("Qwen3-0.6B", 28 * 8 * (128 + 128) * 2),
        ("Qwen3-8B", 36 * 8 * 256 * 2),
        ("Qwen3-32B", 64 * 8 * 256 * 2),
        ("Qwen3-30B-A3B", 48 * 4 * 256 * 2),
        ("Llama-3.1-8B", 131_072),
        ("Llama-3.1-70B", 327_680),
        ("Mistral-7B-v0.3", 131_072),
        ("Gemma-3-27B", 62 * 16 * 256 * 2),
        ("DeepSeek-V3 and R1", 70_272),  # 61 x (512 + 64) x 2, without its 128 heads
        ("Qwen2.5-VL-7B", 57_344),
        ("bge-base-en-v1.5", 0),
        ("Qwen2.5-7B-Instruct-AWQ", 57_344),
        ("Qwen2.5-7B-Instruct-GPTQ-Int4", 57_344),
        ("Llama-3.1-8B-Instruct, GGUF Q4_K_M", 131_072),
    ],
)
def test_cache_per_token_follows_the_architecture(name: str, per_token: int) -> None:
    assert cache_bytes_per_token(facts(name), 2) == per_token
    assert cache_bytes_per_token(facts(name), 1) == per_token / 2  # FP8


def test_every_model_of_the_page_is_tested() -> None:
    assert len(ENTRIES) == 14


def test_cache_for_stated_context_and_concurrency() -> None:
    llama = facts("Llama-3.1-8B")
    assert cache(llama) == 16 * GIB
    assert cache(llama, context=131_072, sequences=1) == 16 * GIB
    assert cache(llama, cache_bytes=1) == 8 * GIB
    assert cache(facts("bge-base-en-v1.5")) == 0


def test_heads_of_keys_and_values_are_divided_but_never_below_one() -> None:
    llama = facts("Llama-3.1-8B")  # 8 of them
    assert [cache(llama, Split(tp, 1, 1)) / GIB for tp in (1, 2, 4, 8, 16)] == [16, 8, 4, 2, 2]
    assert [cache(llama, Split(2, pp, 1)) / GIB for pp in (2, 4)] == [4, 2]
    assert cache(llama, Split(2, 1, 4)) == cache(llama, Split(2, 1, 1))  # each copy serves as many


def test_each_gpu_keeps_a_whole_latent() -> None:
    deepseek = facts("DeepSeek-V3 and R1")
    assert cache(deepseek, Split(8, 1, 1)) == cache(deepseek) == 70_272 * 8192 * 16
    assert cache(deepseek, Split(8, 2, 1)) == cache(deepseek) * 31 / 61  # the larger of two stages


def test_sparse_attention_keeps_an_index_beside_its_latent() -> None:
    """DeepSeek-V3.2: 61 x 132 bytes of index, also with an FP8 cache."""
    sparse = replace(facts("DeepSeek-V3 and R1"), index_head_dim=128)
    assert cache_bytes_per_token(sparse, 2) == 70_272 + 61 * 132
    assert cache_bytes_per_token(sparse, 1) == 70_272 / 2 + 61 * 132
    assert cache(sparse, Split(8, 1, 1)) == (70_272 + 61 * 132) * 8192 * 16


def test_a_window_bounds_the_cache_of_its_layers() -> None:
    gemma = facts("Gemma-3-27B")  # every sixth layer has full attention: 10 of 62
    assert (gemma.full_layers, gemma.sliding_window) == (10, 1024)
    assert cache(gemma) == (10 * 8192 + 52 * 1024) * 16 * 16 * 256 * 2
    assert cache(gemma, context=512) == 62 * 512 * 16 * 16 * 256 * 2
    # vLLM starts only if one sequence fits together with the tokens of a step, which enter before the oldest leave.
    one = replace(work(sequences=1), beyond_windows=8192)
    assert cache_per_gpu(gemma, ONE, one) == 62 * 8192 * 16 * 256 * 2
    many = replace(work(), beyond_windows=8192)
    assert cache_per_gpu(gemma, ONE, many) == (10 * 8192 * 16 + 52 * (1024 * 16 + 8192)) * 16 * 256 * 2
    # It allocates the 52 layers in six groups of ten.
    assert cache_per_gpu(gemma, ONE, replace(one, window_groups=True)) == 70 * 8192 * 16 * 256 * 2
    assert cache(replace(gemma, uncached_layers=52, full_layers=10)) == 10 * 8192 * 16 * 16 * 256 * 2


def test_without_heads_in_the_files_the_cache_is_unknown() -> None:
    bare = ModelFacts("safetensors", 100, {"BF16": 100})
    assert cache_bytes_per_token(bare, 2) is None
    assert cache_per_gpu(bare, ONE, work()) is None


def test_floating_types_become_the_engines_working_type() -> None:
    mixed = ModelFacts("safetensors", 1000, {"F32": 400, "BF16": 200, "I32": 300, "F8_E4M3": 100})
    assert loaded_bytes(mixed, 2) == 200 + 200 + 300 + 100
    assert loaded_bytes(mixed, 4) == 400 + 400 + 300 + 100
    assert loaded_bytes(mixed, None) == 1000


def test_weights_of_the_gpu_that_holds_most() -> None:
    llama = facts("Llama-3.1-70B")
    total = llama.weight_bytes
    assert weights_per_gpu(llama, ONE, total) == total
    assert weights_per_gpu(llama, Split(8, 1, 1), total) == total // 8
    # A stage has half the layers and either the embeddings or the head: 128256 x 8192 of two bytes.
    outside = 128_256 * 8192 * 2
    assert weights_per_gpu(llama, Split(1, 2, 1), total) == (total - outside) // 2 + outside
    # 8 heads of keys and values over 16 GPUs: each of them is held by two.
    doubled = 2 * 80 * 8192 * 128 * 8 * 2
    assert weights_per_gpu(llama, Split(16, 1, 1), total) == int((total - doubled) / 16 + doubled / 8)


def test_activations_are_what_vllm_measured() -> None:
    """PR 10511 of vLLM: 1.26 GiB for Llama-3-8B, with tp 1 and with tp 2."""
    assert activations(facts("Llama-3.1-8B"), work(), 2) / GIB == pytest.approx(1.26, rel=0.05)
    assert activations(facts("bge-base-en-v1.5"), work(), 2) / GIB < 0.25


@given(
    name=st.sampled_from(sorted(ENTRIES)),
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.integers(1, 8),
    context=st.integers(1, 200_000),
    sequences=st.integers(1, 64),
)
def test_shares_add_up_to_at_least_the_whole(name: str, tp: int, pp: int, context: int, sequences: int) -> None:
    model, split = facts(name), Split(tp, pp, 1)
    total = model.weight_bytes
    assert weights_per_gpu(model, split, total) * split.gpus >= total - split.gpus
    assert weights_per_gpu(model, split, total) <= total
    whole = cache(model, context=context, sequences=sequences)
    assert cache(model, split, context=context, sequences=sequences) * split.gpus >= whole * (1 - 1e-9)
    assert cache(model, context=context, sequences=sequences + 1) >= whole
