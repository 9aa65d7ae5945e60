"""Which files of a folder are a model's weights."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from controller.model_files.analysis import read_facts, simulated_need
from controller.model_files.files import LocalFolder, MetadataError
from controller.model_files.weights import BIN_INDEX_FILE, INDEX_FILE, Weights, read_weights
from controller.runtime.child import ChildError, run_child
from support.builders.model_files import model_folder, safetensors

HALF_FOUR = safetensors({"a": ("F16", [4], 8)})
HALF_TWO = safetensors({"b": ("F16", [2], 4)})


def weights(folder: Path, files: dict[str, Any]) -> Weights:
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return read_weights(LocalFolder(folder))


def index(**weight_map: str) -> dict[str, Any]:
    return {"metadata": {"total_size": 1}, "weight_map": weight_map}


TWO_BINS = index(a="p-1.bin", b="p-2.bin")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        # The same weights in a second or in the vendor's own format: not counted.
        ({"model.safetensors": HALF_FOUR, "pytorch_model.bin": b"x" * 99}, ("safetensors", 8)),
        ({"model.safetensors": HALF_FOUR, "consolidated.safetensors": HALF_FOUR}, ("safetensors", 8)),
        ({"gptq_model-4bit.safetensors": HALF_FOUR, "consolidated.00.safetensors": HALF_TWO}, ("safetensors", 8)),
        ({"m-1.safetensors": HALF_FOUR, "m-2.safetensors": HALF_TWO}, ("safetensors", 12)),
        ({"m-1.safetensors": HALF_FOUR, "m-2.safetensors": HALF_TWO, "pytorch_model.bin": b"x"}, ("safetensors", 12)),
        ({"w-00001-of-00002.bin": b"x" * 5, "w-00002-of-00002.bin": b"x"}, ("bin", 6)),
        # Equal tensors in two files without an index are loaded once.
        ({"m.safetensors": HALF_FOUR, "copy.safetensors": HALF_FOUR}, ("safetensors", 8)),
        ({"consolidated.safetensors": HALF_FOUR}, ("safetensors", 8)),
        ({"adapter_model.safetensors": HALF_FOUR}, ("safetensors", 8)),
        ({"adapter_model.bin": b"x" * 3}, ("bin", 3)),
        ({"adapter_model.safetensors": HALF_FOUR, "pytorch_model.bin": b"x" * 5}, ("bin", 5)),
        # The index's sizes are not used.
        ({"p-1.bin": b"x" * 5, "p-2.bin": b"x" * 6, "z.bin": b"x", BIN_INDEX_FILE: TWO_BINS}, ("bin", 11)),
        ({"pytorch_model.bin": b"x" * 5, "training_args.bin": b"x" * 7}, ("bin", 5)),
        ({"model-1.bin": b"x" * 5, "optimizer.bin": b"x" * 7}, ("bin", 5)),
    ],
)  # fmt: skip
def test_one_format_counts_once(tmp_path: Path, files: dict[str, Any], expected: tuple[str, int]) -> None:
    found = weights(tmp_path, files)
    assert (found.format, found.size_bytes) == expected


def test_shards_count_the_tensors_of_the_index(tmp_path: Path) -> None:
    found = weights(
        tmp_path,
        {
            "m-1.safetensors": safetensors({"a": ("F16", [4], 8), "stale": ("F16", [400], 800)}),
            "m-2.safetensors": HALF_TWO,
            "other.safetensors": safetensors({"c": ("F16", [2], 4)}),
            INDEX_FILE: index(a="m-1.safetensors", b="m-2.safetensors"),
        },
    )
    assert found == Weights("safetensors", 12, {"F16": 12}, 6)


@pytest.mark.parametrize(
    ("index", "words", "retryable"),
    [
        ({"weight_map": {"a": "gone.safetensors"}}, r"gone\.safetensors is not there", True),
        ({"weight_map": {"a": "m-1.safetensors", "z": "m-1.safetensors"}}, "lacks tensor 'z'", False),
        ({"weight_map": {"a": "../m-1.safetensors"}}, "not a file of its own folder", False),
        ({"weight_map": {"a": "/etc/passwd"}}, "not a file of its own folder", False),
        ({"weight_map": {"a": 3}}, "not a file of its own folder", False),
        ({"weight_map": {"a": "\0"}}, r"'\\x00' is not there", True),
        ({"weight_map": {}}, "no weight_map", False),
        ({"weight_map": {f"t{n}": f"s{n}" for n in range(5000)}}, "more than 4096", False),
        ([], "not a JSON object", False),
    ],
)
def test_broken_indexes(tmp_path: Path, index: Any, words: str, retryable: bool) -> None:
    with pytest.raises(MetadataError, match=words) as raised:
        weights(tmp_path, {"m-1.safetensors": HALF_FOUR, INDEX_FILE: index})
    assert raised.value.retryable is retryable


@pytest.mark.parametrize(
    ("files", "words", "retryable"),
    [
        ({}, "holds no weights", True),
        ({"training_args.bin": b"x"}, "holds no weights", True),
        ({"model.safetensors": safetensors({})}, "are empty", False),
        ({"pytorch_model.bin": b""}, "are empty", False),
        ({"model-00001-of-00002.safetensors": HALF_FOUR}, "model: 1 of 2 parts are there", True),
        ({"pytorch_model-00002-of-00003.bin": b"x"}, "pytorch_model: 1 of 3 parts are there", True),
        ({"consolidated.00.pth": b"x"}, r"consolidated\.00\.pth: no engine here loads", False),
        ({"pytorch_model.bin": b"version https://git-lfs.github.com/spec/v1\n"}, "git lfs pull", True),
        ({"model.safetensors": b"version https://git-lfs.github.com/spec/v1\n"}, "git lfs pull", True),
    ],
)
def test_no_weights_are_an_error_and_never_zero_bytes(
    tmp_path: Path, files: dict[str, Any], words: str, retryable: bool
) -> None:
    with pytest.raises(MetadataError, match=words) as raised:
        weights(tmp_path, files)
    assert raised.value.retryable is retryable


def test_a_missing_folder_is_retryable(tmp_path: Path) -> None:
    with pytest.raises(MetadataError, match=r"set resources\.gpu_memory") as raised:
        LocalFolder(tmp_path / "missing")
    assert raised.value.retryable


def test_pipes_and_broken_links_are_ignored(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    (tmp_path / "pytorch_model.bin").symlink_to(tmp_path / "nowhere")
    (tmp_path / "round.bin").symlink_to("round.bin")
    with pytest.raises(MetadataError, match="holds no weights"):
        read_weights(LocalFolder(tmp_path))


def test_a_broken_config_names_the_file(tmp_path: Path) -> None:
    model_folder(tmp_path, {"a": ("F16", [4], 8)})
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(MetadataError, match=r"config\.json is not valid JSON"):
        read_facts({"path": str(tmp_path)})


@pytest.mark.parametrize(
    ("name", "stated", "expected"),
    [
        ("quantize_config.json", {"bits": 4, "group_size": 128, "desc_act": True}, {"method": "gptq", "bits": 4}),
        ("quant_config.json", {"zero_point": True, "w_bit": 4, "version": "GEMM"}, {"method": "awq", "bits": 4}),
        (
            "hf_quant_config.json",
            {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}},
            {"method": "modelopt", "bits": 8},
        ),
    ],
)
def test_a_quantisation_file_beside_the_config(
    tmp_path: Path, name: str, stated: dict[str, Any], expected: dict[str, Any]
) -> None:
    model_folder(tmp_path, {"a": ("F16", [4], 8)}, {"model_type": "llama"})
    (tmp_path / name).write_text(json.dumps(stated))
    assert read_facts({"path": str(tmp_path)})["quantization"] == expected
    model_folder(tmp_path, {"a": ("F16", [4], 8)}, {"quantization_config": {"quant_method": "fp8"}})
    assert read_facts({"path": str(tmp_path)})["quantization"] == {"method": "fp8", "bits": 8}


def test_the_simulated_analysis_returns_its_input() -> None:
    assert simulated_need({"seconds": 0, "memory_mib": None}) == {"memory_mib": None}


TARGET = "controller.model_files.analysis:model_facts"


async def test_in_the_child(tmp_path: Path) -> None:
    model_folder(tmp_path, {"a": ("BF16", [4, 8], 64)})
    result = await run_child(TARGET, {"path": str(tmp_path)}, deadline_s=60, memory_bytes=2**29)
    assert result["weight_bytes"] == 64
    with pytest.raises(ChildError) as raised:
        await run_child(TARGET, {"path": str(tmp_path / "x")}, deadline_s=60, memory_bytes=2**29)
    assert raised.value.retryable
