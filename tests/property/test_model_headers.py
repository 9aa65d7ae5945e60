"""Untrusted model files: facts or a clear error, whatever they hold, within bounds of memory and time."""

import json
import resource
import struct
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFValueType
from hypothesis import given
from hypothesis import strategies as st

from controller.model_files.analysis import facts_of
from controller.model_files.weights import BIN_INDEX_FILE, INDEX_FILE
from controller.runtime.child import ChildError, run_child
from support.builders.bounds import MOST_BYTES, bounded
from support.builders.memory_files import MemoryFiles
from support.builders.model_files import safetensors, with_header
from support.builders.untrusted_model import read
from support.profiles import TIMEOUT_S, reader_settings

pytestmark = pytest.mark.timeout(TIMEOUT_S)

NUMBERS = st.integers() | st.sampled_from([0, 1, 2, 8, 64, 2**31, 2**32, 2**63, 2**64, 10**30, -1])
SCALARS = st.none() | st.booleans() | NUMBERS | st.floats() | st.text(max_size=20)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
COUNTS = st.integers(0, 70) | NUMBERS


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """A valid file after a few mutations: cut, a wrong length written over it, bytes inserted or changed."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        match draw(st.sampled_from(["cut", "length", "bytes", "insert", "number"])):
            case "cut":
                del content[at:]
            case "length":
                content[at : at + 8] = struct.pack(
                    "<Q", draw(st.sampled_from([0, 1, 255, 2**16, 2**31, 2**63, 2**64 - 1]))
                )
            case "number":
                content[at : at + 4] = struct.pack("<I", draw(st.integers(0, 45)))
            case "bytes":
                content[at : at + 1] = draw(st.binary(max_size=3))
            case _:
                content[at:at] = draw(st.binary(max_size=9))
    return bytes(content)


# --- safetensors ---

GOOD_SAFETENSORS = safetensors({"a": ("BF16", [4, 8], 64), "b": ("F32", [2], 8), "c": ("F8_E4M3", [3], 3)})
ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F16", "F32", "U8", "Q9", ""]) | SCALARS,
        "shape": st.lists(COUNTS, max_size=4) | SCALARS,
        "data_offsets": st.lists(COUNTS, min_size=2, max_size=2) | SCALARS,
    },
)
HEADERS = JSON | st.dictionaries(st.sampled_from(["a", "b", "c", "__metadata__", "\0"]), ENTRIES | JSON, max_size=4)
SAFETENSORS = (
    damaged(GOOD_SAFETENSORS) | st.binary(max_size=64) | st.builds(with_header, HEADERS, st.binary(max_size=16))
)


@given(SAFETENSORS)
@reader_settings()
def test_safetensors(content: bytes) -> None:
    read({"model.safetensors": content})


SHARDS = ["m-1.safetensors", "m-2.safetensors", "p-1.bin", "../x", "", "\0"]
INDEXES = st.dictionaries(st.sampled_from("abc"), st.sampled_from(SHARDS) | JSON, max_size=3)


NAMES = st.sampled_from([*SHARDS[:3], "consolidated.safetensors", "pytorch_model.bin", "x.gguf"])


@given(
    st.dictionaries(NAMES, SAFETENSORS, max_size=4),
    st.sampled_from([INDEX_FILE, BIN_INDEX_FILE, None]),
    st.builds(lambda weight_map: {"weight_map": weight_map}, INDEXES) | JSON,
)
@reader_settings()
def test_folders_with_indexes(files: dict[str, bytes], name: str | None, index: Any) -> None:
    read(files | ({name: json.dumps(index).encode()} if name else {}))


# --- config.json ---

FIELDS = st.sampled_from(
    [
        "architectures", "attention", "attention_chunk_size", "attn_config", "attn_layer_indices",
        "attn_layer_period", "block_configs", "compression_config", "hybrid_layer_pattern", "n_heads_in_group",
        "dtype", "ffn_config", "full_attention_interval", "head_dim", "hidden_size",
        "hybrid_override_pattern", "intermediate_size", "kv_lora_rank", "layer_types", "llm_config",
        "max_position_embeddings", "max_window_layers", "model_type", "multi_query", "multi_query_attention",
        "new_decoder_architecture", "num_attention_heads", "num_experts", "num_hidden_layers",
        "num_key_value_heads", "qk_nope_head_dim", "qk_rope_head_dim", "quantization_config",
        "sliding_window", "sliding_window_pattern", "text_config", "thinker_config", "torch_dtype",
        "use_sliding_window", "v_head_dim", "vision_config", "vocab_size", "config_groups", "weights",
        "num_bits", "bits", "quant_method",
    ]
)  # fmt: skip
WORDS = st.sampled_from(
    ["llama", "gemma3_text", "qwen2", "bert", "full_attention", "sliding_attention", "LLLG", "M*", "fp8"]
)
VALUES = COUNTS | SCALARS | WORDS | st.lists(WORDS | SCALARS, max_size=4)
CONFIGS = st.recursive(
    VALUES, lambda inner: st.dictionaries(FIELDS, inner, max_size=8) | st.lists(inner, max_size=3), max_leaves=30
)  # fmt: skip


@given(st.dictionaries(FIELDS, CONFIGS, max_size=12).map(lambda c: json.dumps(c).encode()) | st.binary(max_size=64))
@reader_settings()
def test_configs(config: bytes) -> None:
    read({"model.safetensors": GOOD_SAFETENSORS, "config.json": config})


# --- GGUF ---


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key.encode()) + struct.pack("<I", kind) + value


KEYS = st.sampled_from(
    [
        *("general.architecture", "general.type", "general.alignment", "tokenizer.ggml.tokens", "gemma3.block_count"),
        *("gemma3.attention.head_count", "gemma3.attention.head_count_kv", "gemma3.attention.sliding_window"),
        *("gemma3.attention.sliding_window_pattern", "gemma3.full_attention_interval", "gemma3.embedding_length"),
        *("gemma3.attention.key_length_mla", "gemma3.attention.causal"),
    ]
)
LENGTHS = st.sampled_from([0, 1, 3, 2**20, 2**62, 2**64 - 1])
STRINGS = st.sampled_from([b"gemma3", b"model", b"\xff", b"", b"\0"]).map(text)
HEADS_OF_ARRAYS = st.builds(lambda kind, items: struct.pack("<IQ", kind, items), st.integers(0, 14), LENGTHS)
ARRAYS = st.builds(bytes.__add__, HEADS_OF_ARRAYS, st.binary(max_size=40))
PAIRS = (
    st.builds(entry, KEYS, st.integers(0, 14), st.binary(max_size=12))
    | st.builds(entry, KEYS, st.just(int(GGUFValueType.UINT32)), COUNTS.map(lambda n: struct.pack("<I", n % 2**32)))
    | st.builds(entry, KEYS, st.just(int(GGUFValueType.STRING)), STRINGS)
    | st.builds(entry, KEYS, st.just(int(GGUFValueType.ARRAY)), ARRAYS)
)
TENSORS = st.builds(
    lambda shape, kind, offset: text(b"t") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset),
    st.lists(st.sampled_from([0, 1, 2, 32, 256, 2**40, 2**63]), max_size=5),
    st.integers(0, 42),
    st.sampled_from([0, 32, 64, 2**63]),
)


@st.composite
def gguf_files(draw: st.DrawFn) -> bytes:
    pairs, tensors = draw(st.lists(PAIRS, max_size=6)), draw(st.lists(TENSORS, max_size=3))
    counts = draw(st.just((len(tensors), len(pairs))) | st.tuples(LENGTHS, LENGTHS))
    body = struct.pack("<IQQ", draw(st.sampled_from([3, 3, 3, 2, 1, 3 << 24])), *counts)
    return b"GGUF" + body + b"".join(pairs + tensors) + b"\0" * draw(st.sampled_from([0, 31, 512]))


GOOD_GGUF = (
    b"GGUF" + struct.pack("<IQQ", 3, 1, 3)
    + entry("general.architecture", 8, text(b"gemma3")) + entry("gemma3.block_count", 4, struct.pack("<I", 62))
    + entry("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 2) + text(b"one") + text(b"two"))
    + text(b"t") + struct.pack("<IQQIQ", 2, 4, 8, 1, 0) + b"\0" * 128
)  # fmt: skip


@given(gguf_files() | damaged(GOOD_GGUF) | st.binary(max_size=64).map(lambda tail: b"GGUF\3\0\0\0" + tail))
@reader_settings()
def test_gguf(content: bytes) -> None:
    read({"m.gguf": content})


def test_the_memory_bound_works() -> None:
    """With as much again as the process has: what it has freed may be reused within the bound."""
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    with pytest.raises(MemoryError), bounded():
        bytearray(has + 2 * MOST_BYTES)


def test_the_valid_files_are_valid() -> None:
    assert facts_of(MemoryFiles({"m.gguf": GOOD_GGUF})).layers == 62
    assert facts_of(MemoryFiles({"model.safetensors": GOOD_SAFETENSORS})).weight_bytes == 75


# --- the largest allowed ---

MODEL_FACTS = "controller.model_files.analysis:model_facts"
LARGE = {
    "many entries": ("model.safetensors", lambda: with_header(b'{"a":[' + b"1," * 16_000_000 + b"1]}")),
    "deep": ("model.safetensors", lambda: with_header(b"[" * 16_000_000)),
    "long words": ("model.safetensors", lambda: with_header(b'{"' + b"a" * 60_000_000 + b'":1}')),
    "many dtypes": (
        "model.safetensors",
        lambda: with_header({f"t{n}": {"dtype": f"D{n}", "shape": [], "data_offsets": [0, 0]} for n in range(400_000)}),
    ),
    "config": ("config.json", lambda: b'{"layer_types": [' + b"{}," * 4_000_000 + b"{}]}"),
    "empty strings": (
        "m.gguf",
        lambda: b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + entry("k", 9, struct.pack("<IQ", 8, 2**22) + b"\0" * 2**26),
    ),
}  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("kind", LARGE)
async def test_the_largest_files_end_in_time_and_within_the_memory_limit(tmp_path: Path, kind: str) -> None:
    name, content = LARGE[kind]
    if name == "config.json":
        (tmp_path / "model.safetensors").write_bytes(GOOD_SAFETENSORS)
    (tmp_path / name).write_bytes(content())
    reading = run_child(MODEL_FACTS, {"path": str(tmp_path)}, deadline_s=60, memory_bytes=2 * 2**30)
    if name == "config.json":
        assert (await reading)["weight_bytes"] == 75
        return
    with pytest.raises(ChildError, match=r"^MetadataError: "):
        await reading
