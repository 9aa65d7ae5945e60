"""GGUF headers: files written by the library, split files and corrupt files."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter

from controller.domain.model_facts import facts_from_json
from controller.engines.estimates.memory import cache_bytes_per_token
from controller.engines.estimates.states import state_bytes
from controller.model_files.analysis import read_facts
from controller.model_files.files import LocalFolder, MetadataError
from controller.model_files.gguf_header import GgufHeader, read_header
from controller.runtime.child import run_child
from support.builders.model_files import model_folder
from support.standins.model_hub import COMMIT, Hub, running_hub

Q4_K_BLOCK = 256, 144  # elements, bytes


def gguf(path: Path, arch: str = "llama", tokens: int = 10, kind: str | None = None, **fields: Any) -> Path:
    """A model with a Q4_K tensor of two blocks and an F32 one of eight elements; keyword a__b is key a.b."""
    writer = GGUFWriter(path, arch)
    if kind is not None:
        writer.add_type(kind)
    writer.add_token_list([f"token {n}" for n in range(tokens)])
    for key, value in fields.items():
        name = f"{arch}.{key.replace('__', '.')}"
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, bool):
            writer.add_bool(name, value)
        else:
            writer.add_uint32(name, value)
    blocks = np.zeros((2, Q4_K_BLOCK[1]), dtype=np.uint8)
    writer.add_tensor("blk.0.attn_q.weight", blocks, raw_dtype=GGMLQuantizationType.Q4_K)
    writer.add_tensor("output_norm.weight", np.zeros(8, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def header(path: Path) -> GgufHeader:
    return read_header(LocalFolder(path.parent), path.name)


def facts(path: Path, **adapters: Any) -> dict[str, Any]:
    return read_facts({"gguf": str(path)} | adapters)


LLAMA = {
    "block_count": 32, "context_length": 131072, "embedding_length": 4096, "feed_forward_length": 14336,
    "attention__head_count": 32, "attention__head_count_kv": 8,
}  # fmt: skip


def test_a_llama(tmp_path: Path) -> None:
    found = facts(gguf(tmp_path / "m.gguf", tokens=300, **LLAMA))
    assert (found["format"], found["dtypes"], found["weight_bytes"]) == ("gguf", {"Q4_K": 288, "F32": 32}, 320)
    assert (found["parameters"], found["architectures"], found["vocab"]) == (520, ("llama",), 300)
    assert (found["layers"], found["full_layers"], found["context_length"]) == (32, 32, 131072)
    assert (found["heads"], found["kv_heads"], found["head_dim"], found["v_head_dim"]) == (32, 8, 128, None)
    assert (found["hidden_size"], found["intermediate_size"], found["encoder"]) == (4096, 14336, False)


@pytest.mark.parametrize(
    ("arch", "fields", "expected"),
    [
        ("gemma3", {"block_count": 62, "attention__sliding_window": 1024}, {"full_layers": 10, "sliding_window": 1024}),
        # A window that llama.cpp does not use.
        ("phi3", {"block_count": 32, "attention__sliding_window": 2047}, {"full_layers": 32, "sliding_window": None}),
        (
            "gpt-oss",
            {"block_count": 4, "attention__sliding_window": 9, "attention__sliding_window_pattern": [True, False] * 2},
            {"full_layers": 2, "sliding_window": 9},
        ),
        (
            "smollm",
            {"block_count": 9, "attention__sliding_window": 9, "attention__sliding_window_pattern": 3},
            {"full_layers": 3, "sliding_window": 9},
        ),
        # DeepSeek converted by present llama.cpp caches latents; by former versions, whole heads.
        (
            "deepseek2",
            {
                "attention__kv_lora_rank": 512, "attention__key_length": 576, "attention__value_length": 512,
                "attention__key_length_mla": 192, "attention__value_length_mla": 128, "rope__dimension_count": 64,
                "attention__head_count": 128, "attention__head_count_kv": 1, "expert_count": 256,
                "expert_used_count": 8,
            },
            {
                "kv_lora_rank": 512, "qk_rope_head_dim": 64, "head_dim": 192, "v_head_dim": 128, "heads": 128,
                "experts": 256, "experts_per_token": 8,
            },
        ),
        (
            "deepseek2",
            {"attention__kv_lora_rank": 512, "attention__key_length": 192, "attention__value_length": 128},
            {"kv_lora_rank": None, "head_dim": 192, "v_head_dim": 128},
        ),
        ("jamba", {"block_count": 4, "attention__head_count_kv": [0, 8, 0, 8]}, {"uncached_layers": 2, "kv_heads": 8}),
        ("qwen3next", {"block_count": 48, "full_attention_interval": 4}, {"full_layers": 12, "uncached_layers": 36}),
        ("bert", {"attention__causal": False}, {"encoder": True}),
        ("qwen3", {"attention__causal": False}, {"encoder": True}),
        ("llama", {"block_count": 0, "context_length": 0}, {"layers": None, "context_length": None}),
    ],
)  # fmt: skip
def test_other_families(tmp_path: Path, arch: str, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    found = facts(gguf(tmp_path / "m.gguf", arch=arch, **fields))
    assert {key: found[key] for key in expected} == expected


SSM = {"ssm__conv_kernel": 4, "ssm__inner_size": 4096, "ssm__state_size": 128, "ssm__group_count": 16}
HEADS = {"embedding_length": 2048, "attention__head_count": 16, "attention__key_length": 128}
GEMMA4 = {
    "attention__head_count": 8, "attention__head_count_kv": [4, 4, 1, 4, 4, 1], "attention__key_length": 512,
    "attention__value_length": 512, "attention__key_length_swa": 256, "attention__value_length_swa": 256,
    "attention__sliding_window": 1024, "attention__sliding_window_pattern": [True, True, False] * 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("arch", "fields", "per_token", "states", "each"),
    [
        # Elements of keys and values of a token; layers with a state, and its elements, as llama-server keeps them.
        ("qwen3next", HEADS | SSM | {"block_count": 48, "attention__head_count_kv": 2}, 12 * 2 * 256, 36, 548_864),
        # Older files lack the interval; a model of states alone has no key-value heads that count.
        ("mamba2", {"block_count": 64, **SSM, "ssm__inner_size": 8192, "ssm__group_count": 8}, 0, 64, 1_079_296),
        (
            "falcon-h1",
            HEADS | {"block_count": 72, "attention__head_count_kv": 4, "attention__value_length": 128,
                     **SSM, "ssm__state_size": 256, "ssm__group_count": 2},
            72 * 4 * 256, 72, 1_063_936,
        ),
        (
            "granitehybrid",
            HEADS | SSM | {"block_count": 4, "attention__head_count_kv": [0, 8, 0, 0]},
            8 * 256, 3, 548_864,
        ),
        # Of these a layer may have neither: experts alone.
        (
            "nemotron_h_moe",
            HEADS | SSM | {"block_count": 4, "attention__head_count_kv": [0, 0, 2, 0],
                           "feed_forward_length": [0, 1856, 0, 0]},
            2 * 256, 2, 548_864,
        ),
        (
            "kimi-linear",
            {"block_count": 4, "embedding_length": 2304, "attention__head_count": 32, "kda__head_dim": 128,
             "attention__head_count_kv": [0, 0, 0, 1], "ssm__conv_kernel": 4, "attention__kv_lora_rank": 512,
             "attention__key_length_mla": 192, "attention__value_length_mla": 128, "rope__dimension_count": 64},
            576, 3, 3 * 4096 * 3 + 32 * 128 * 128,
        ),
        (
            "lfm2",
            HEADS | {"block_count": 3, "attention__head_count_kv": [0, 8, 0], "shortconv__l_cache": 3},
            8 * 256, 2, 4096,
        ),
        ("rwkv7", {"block_count": 24, "embedding_length": 2048, "wkv__head_size": 64}, 0, 24, 2 * 2048 + 2048 * 64),
        # Heads of each layer, and others in layers with a window; the last layers may use the cache of earlier ones.
        ("gemma4", HEADS | GEMMA4 | {"block_count": 6}, 4 * 4 * 512 + 2 * 1024, None, None),
        (
            "gemma4",
            HEADS | GEMMA4 | {"block_count": 6, "attention__shared_kv_layers": 3},
            2 * 4 * 512 + 1024, None, None,
        ),
        (
            "deci",
            HEADS | {"block_count": 4, "attention__head_count_kv": [8, 0, 4, 1]},
            13 * 256, None, None,
        ),
        # A new type with a state: which layers keep it is not known, so all count with both.
        ("novel", HEADS | SSM | {"block_count": 4, "attention__head_count_kv": 2}, 4 * 2 * 256, 4, 548_864),
    ],
)  # fmt: skip
def test_what_layers_keep(
    tmp_path: Path, arch: str, fields: dict[str, Any], per_token: int, states: int | None, each: int | None
) -> None:
    found = facts_from_json(facts(gguf(tmp_path / "m.gguf", arch=arch, **fields)))
    assert found.unknown is None
    assert cache_bytes_per_token(found, 1) == per_token
    assert (found.states and found.states.layers) == states
    assert found.states is None or state_bytes(found.states, 1, 1, 1) == each


def test_a_state_of_unknown_size_is_unknown(tmp_path: Path) -> None:
    found = facts(gguf(tmp_path / "m.gguf", arch="qwen3next", block_count=4, attention__head_count_kv=2))
    assert "state" in found["unknown"]


def test_the_reader_agrees_with_the_library(tmp_path: Path) -> None:
    path = gguf(tmp_path / "m.gguf", tokens=500, **LLAMA)
    ours, theirs = header(path), GGUFReader(path)
    assert ours.parameters == sum(int(tensor.n_elements) for tensor in theirs.tensors)
    assert sum(ours.dtypes.values()) == sum(int(tensor.n_bytes) for tensor in theirs.tensors)
    kept = {key: value for key, value in ours.values.items() if isinstance(value, int)}
    assert kept
    assert {key: theirs.fields[key].contents() for key in kept} == kept


def test_all_parts_of_a_split_model_count(tmp_path: Path) -> None:
    for part in (1, 2, 3):
        gguf(tmp_path / f"m-0000{part}-of-00003.gguf", **(LLAMA if part == 1 else {}))
    found = facts(tmp_path / "m-00002-of-00003.gguf")
    assert (found["weight_bytes"], found["layers"]) == (3 * 320, 32)
    (tmp_path / "m-00003-of-00003.gguf").unlink()
    with pytest.raises(MetadataError, match=r"m-00003-of-00003\.gguf is not there") as raised:
        facts(tmp_path / "m-00001-of-00003.gguf")
    assert raised.value.retryable


def test_a_folder_with_one_model(tmp_path: Path) -> None:
    gguf(tmp_path / "m-Q4_K_M.gguf", **LLAMA)
    gguf(tmp_path / "mmproj-m.gguf", arch="clip")
    assert read_facts({"path": str(tmp_path)})["layers"] == 32
    gguf(tmp_path / "m-Q8_0.gguf", **LLAMA)
    with pytest.raises(MetadataError, match=r"several GGUF models \(m-Q4_K_M\.gguf, m-Q8_0\.gguf"):
        read_facts({"path": str(tmp_path)})


def test_adapters_are_added_up(tmp_path: Path) -> None:
    model = gguf(tmp_path / "m.gguf", **LLAMA)
    one, two = gguf(tmp_path / "a.gguf", kind="adapter"), model_folder(tmp_path / "b", {"x": ("F16", [4], 8)})
    assert facts(model, adapters=[{"gguf": str(one)}, {"path": str(two)}])["adapter_bytes"] == 328
    with pytest.raises(MetadataError, match="type is 'adapter', must be 'model'"):
        facts(one)
    with pytest.raises(MetadataError, match="more than 64"):
        facts(model, adapters=[{"gguf": str(one)}] * 65)


async def test_on_a_hub_and_in_the_child(tmp_path: Path) -> None:
    content = gguf(tmp_path / "m.gguf", tokens=150_000, **LLAMA).read_bytes()
    with running_hub(Hub({"org/m": {"m-Q4.gguf": content + b"\0" * 2**24, "m-Q8.gguf": content}})) as hub:
        target = "controller.model_files.analysis:model_facts"
        payload = {"repo": "org/m", "revision": "main", "file": "m-Q4.gguf", "endpoint": hub.url}
        found = await run_child(target, payload, deadline_s=60, memory_bytes=2**29)
        assert (found["vocab"], found["revision"]) == (150_000, COMMIT)
        assert hub.sent < 2 * len(content)


def raw(*parts: bytes, tensors: int = 0, keys: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + b"".join(parts)


def text(value: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(value) if length is None else length) + value


def tensor(*shape: int, kind: int = 0, offset: int = 0) -> bytes:
    return text(b"t") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def array(kind: int, items: int) -> bytes:
    return struct.pack("<IIQ", 9, kind, items)


PAD = b"\0" * 64


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "exceeds the 0 bytes"),
        (b"GGUF", "exceeds the 4 bytes"),
        (b"version https://git", "not a GGUF file"),
        (raw(version=1), "unknown GGUF version 1"),
        (raw(version=3 << 24), "unknown GGUF version 50331648"),  # big-endian
        (raw(tensors=2**63), "limits"),
        (raw(keys=2**40), "limits"),
        (raw(keys=1), "exceeds"),
        (raw(text(b"k", 2**63), keys=1), "exceeds"),
        (raw(text(b"\xff") + struct.pack("<IB", 0, 1), keys=1), "not valid text"),
        (raw(text(b"k") + struct.pack("<I", 13), keys=1), "type 13"),
        (raw(text(b"k") + array(4, 2**62), keys=1), "limit"),
        (raw(text(b"k") + array(8, 2**20), keys=1), "exceeds"),
        (raw(text(b"k") + array(13, 1), keys=1), "type 13"),
        (raw(text(b"k") + array(9, 1) + array(9, 1)[4:] * 9, keys=1), "type 9"),
        (raw(tensor(2, kind=999), PAD, tensors=1), "type 999"),
        (raw(tensor(1, 1, 1, 1, 1), PAD, tensors=1), "malformed"),
        (raw(tensor(255, kind=12), PAD, tensors=1), "blocks of 256"),
        (raw(tensor(2**62, 2**62), PAD, tensors=1), "blocks of 1"),
        (raw(tensor(4), tensor(4, offset=8), PAD * 2, tensors=2), "overlap"),
    ],
)
def test_corrupt_files_are_terminal_and_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(MetadataError, match=words) as raised:
        header(path)
    assert not raised.value.retryable
    assert str(path) in str(raised.value)


def test_a_file_that_is_still_copied_is_retryable(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(raw(tensor(2**40), PAD, tensors=1))
    with pytest.raises(MetadataError, match=r"ends \d+ bytes before its tensors do") as raised:
        header(tmp_path / "m.gguf")
    assert raised.value.retryable


def test_a_file_without_tensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(raw())
    with pytest.raises(MetadataError, match="holds no tensors"):
        facts(tmp_path / "m.gguf")


def test_a_missing_file_is_retryable(tmp_path: Path) -> None:
    with pytest.raises(MetadataError, match="is not there") as raised:
        facts(tmp_path / "m.gguf")
    assert raised.value.retryable


def test_layers_are_measured_where_flags_keep_tensors_on_the_host(tmp_path: Path) -> None:
    file = gguf(tmp_path / "m.gguf", **(LLAMA | {"block_count": 2}))
    assert facts(file)["layer_bytes"] == ()
    found = facts(file, to_host=[{"pattern": r"attn_(q|k)", "layers": 1}, {"pattern": "norm"}])
    assert (found["layer_bytes"], found["host_layer_bytes"], found["host_other_bytes"]) == ((288, 0), (288, 0), 32)
    assert facts(file, draft={"gguf": str(file)})["draft"]["weight_bytes"] == 320


@pytest.mark.parametrize(
    "fields",
    [
        {"attention__head_count_kv": [8] * 31 + [-8]},
        {"attention__head_count_kv": [-8] * 32},
        {"attention__head_count_kv": [8.0] * 32},
        {"attention__head_count_kv": [8] * 5},
        {"attention__shared_kv_layers": 32},
        {"attention__shared_kv_layers": 400},
    ],
)
def test_layers_that_do_not_add_up_keep_no_less_than_others(tmp_path: Path, fields: dict[str, Any]) -> None:
    usual = facts_from_json(facts(gguf(tmp_path / "m.gguf", **LLAMA)))
    odd = facts_from_json(facts(gguf(tmp_path / "o.gguf", **LLAMA | fields)))
    least, found = cache_bytes_per_token(usual, 2), cache_bytes_per_token(odd, 2)
    assert least is not None
    assert found is None or found >= least
