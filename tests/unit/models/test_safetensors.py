"""Headers of safetensors files: real ones, split ones, broken ones."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuward.controller.models.analysis import safetensors_need, simulated_need
from gpuward.controller.models.config import ModelConfig, parse_config
from gpuward.controller.models.errors import MetadataError
from gpuward.controller.models.safetensors import INDEX_FILE, MAX_HEADER_BYTES, SINGLE_FILE, folder_totals, read_header
from gpuward.controller.runtime.child import ChildError, run_child


def write(path: Path, tensors: dict[str, tuple[str, list[int], int]]) -> Path:
    """A file with these tensors: dtype, shape, bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    return write_raw(path, header, b"\0" * end)


def write_raw(path: Path, header: Any, data: bytes) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_one_file(tmp_path: Path) -> None:
    write(tmp_path / SINGLE_FILE, {"a": ("BF16", [4, 8], 64), "b": ("F32", [2], 8), "s": ("F32", [], 4)})
    (tmp_path / "pytorch_model.bin").write_bytes(b"x" * 1000)  # the same weights once more: not counted
    (tmp_path / "config.json").write_text('{"num_attention_heads": 16, "vocab_size": 100}')
    assert safetensors_need({"path": str(tmp_path)}) == {
        "tensor_bytes": 76, "elements": {"BF16": 32, "F32": 3}, "files": 1, "heads": 16, "kv_heads": 16, "vocab": 100,
    }  # fmt: skip


def test_shards_count_what_the_index_names(tmp_path: Path) -> None:
    write(tmp_path / "m-1.safetensors", {"a": ("F16", [4], 8), "stale": ("F16", [400], 800)})
    write(tmp_path / "m-2.safetensors", {"b": ("F16", [2], 4)})
    write(tmp_path / "other.safetensors", {"c": ("F16", [2], 4)})
    index = {"metadata": {"total_size": 1}, "weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
    (tmp_path / INDEX_FILE).write_text(json.dumps(index))
    totals = folder_totals(tmp_path)
    assert (totals.size_bytes, dict(totals.elements), totals.files) == (12, {"F16": 6}, 2)


@pytest.mark.parametrize(
    ("index", "words", "retryable"),
    [
        ({"weight_map": {"a": "gone.safetensors"}}, "gone.safetensors cannot be read", True),
        ({"weight_map": {"a": "m-1.safetensors", "z": "m-1.safetensors"}}, "lacks tensor 'z'", False),
        ({"weight_map": {"a": "../m-1.safetensors"}}, "no file of its own folder", False),
        ({"weight_map": {"a": "/etc/passwd"}}, "no file of its own folder", False),
        ({"weight_map": {}}, "no weight_map", False),
        ({"weight_map": {f"t{n}": f"s{n}" for n in range(5000)}}, "more than 4096", False),
        ([], "no JSON object", False),
    ],
)
def test_broken_indexes(tmp_path: Path, index: Any, words: str, retryable: bool) -> None:
    write(tmp_path / "m-1.safetensors", {"a": ("F16", [4], 8)})
    (tmp_path / INDEX_FILE).write_text(json.dumps(index))
    with pytest.raises(MetadataError, match=words) as raised:
        folder_totals(tmp_path)
    assert raised.value.retryable is retryable


def entry(**changes: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F16", "shape": [4], "data_offsets": [0, 8]} | changes}


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        (b"{", b"", "not valid JSON"),
        (b"\xff\xfe", b"", "not valid JSON"),
        (b"[" * 100_000, b"", "not valid JSON"),
        ([], b"", "no JSON object"),
        (entry(), b"\0" * 7, "holds 7 bytes of tensors, its header says 8"),
        (entry(), b"\0" * 9, "holds 9 bytes"),
        (entry(data_offsets=[2, 10]), b"\0" * 10, "overlap or leave holes"),
        (entry() | {"b": entry()["a"]}, b"\0" * 8, "overlap or leave holes"),
        (entry(data_offsets=[8, 0]), b"\0" * 8, "malformed"),
        (entry(data_offsets=[-8, 0]), b"\0" * 8, "malformed"),
        (entry(data_offsets=[0]), b"\0" * 8, "malformed"),
        (entry(data_offsets=[0, 10**30]), b"\0" * 8, "malformed"),
        (entry(data_offsets=[0, True]), b"\0", "malformed"),
        (entry(shape=[5]), b"\0" * 8, "malformed"),
        (entry(shape="4"), b"\0" * 8, "malformed"),
        (entry(shape=[4.0]), b"\0" * 8, "malformed"),
        (entry(dtype=1), b"\0" * 8, "malformed"),
        ({"a": 3}, b"", "malformed"),
    ],
)
def test_broken_headers_are_terminal_and_name_the_file(tmp_path: Path, header: Any, data: bytes, words: str) -> None:
    path = write_raw(tmp_path / SINGLE_FILE, header, data)
    with pytest.raises(MetadataError, match=words) as raised:
        read_header(path)
    assert not raised.value.retryable
    assert str(path) in str(raised.value)


def test_header_lengths_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / SINGLE_FILE
    for content in (b"", b"1234567", struct.pack("<Q", 1), struct.pack("<Q", 2**63) + b"x" * 100):
        path.write_bytes(content)
        with pytest.raises(MetadataError):
            read_header(path)
    with path.open("wb") as file:  # sparse: large enough for its claim, which is above the limit all the same
        file.write(struct.pack("<Q", MAX_HEADER_BYTES + 1))
        file.truncate(2 * MAX_HEADER_BYTES)
    with pytest.raises(MetadataError, match="limit"):
        read_header(path)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / SINGLE_FILE
    path.write_bytes(content)
    try:
        read_header(path)
    except MetadataError as error:
        assert str(path) in str(error)  # noqa: PT017 - reading well is as good


def test_folders_without_weights(tmp_path: Path) -> None:
    with pytest.raises(MetadataError, match=r"give resources\.gpu_memory") as raised:
        folder_totals(tmp_path / "missing")
    assert raised.value.retryable
    with pytest.raises(MetadataError, match="neither") as raised:
        folder_totals(tmp_path)
    assert raised.value.retryable
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(MetadataError, match=r"pytorch_model\.bin but no model\.safetensors") as raised:
        folder_totals(tmp_path)
    assert not raised.value.retryable


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 9}, ModelConfig(32, 8, 9)),
        ({"text_config": {"num_attention_heads": 24, "vocab_size": 7}}, ModelConfig(24, 24, 7)),
        ({"vocab_size": 5, "llm_config": {"num_attention_heads": 4, "vocab_size": 7}}, ModelConfig(4, 4, 5)),
        ({"num_attention_heads": "x", "vocab_size": -1, "text_config": None}, ModelConfig()),
    ],
)
def test_config_fields(config: dict[str, Any], expected: ModelConfig) -> None:
    assert parse_config(config) == expected


def test_a_broken_config_names_the_file(tmp_path: Path) -> None:
    write(tmp_path / SINGLE_FILE, {"a": ("F16", [4], 8)})
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(MetadataError, match=r"config\.json is not valid JSON"):
        safetensors_need({"path": str(tmp_path)})


def test_the_simulated_analysis_returns_what_it_was_given() -> None:
    assert simulated_need({"seconds": 0, "memory_mib": None}) == {"memory_mib": None}


TARGET = "gpuward.controller.models.analysis:safetensors_need"


async def test_in_the_child(tmp_path: Path) -> None:
    write(tmp_path / SINGLE_FILE, {"a": ("BF16", [4, 8], 64)})
    result = await run_child(TARGET, {"path": str(tmp_path)}, deadline_s=60, memory_bytes=2**29)
    assert result["tensor_bytes"] == 64
    with pytest.raises(ChildError) as raised:
        await run_child(TARGET, {"path": str(tmp_path / "x")}, deadline_s=60, memory_bytes=2**29)
    assert raised.value.retryable
