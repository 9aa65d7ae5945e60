"""Headers of safetensors files, valid and corrupt."""

import struct
from pathlib import Path
from typing import Any

import pytest

from controller.model_files.files import LocalFolder, MetadataError
from controller.model_files.safetensors import MAX_HEADER_BYTES, Tensor, header_text, parse_header
from support.builders.model_files import safetensors, with_header

FILE = "model.safetensors"


def read(folder: Path) -> dict[str, Tensor]:
    files = LocalFolder(folder)
    return parse_header(header_text(files, FILE), files.sizes[FILE], str(folder / FILE))


def test_a_header_lists_the_tensors(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(safetensors({"a": ("BF16", [4, 8], 64), "b": ("F32", [2], 8), "s": ("F32", [], 4)}))
    assert read(tmp_path) == {"a": Tensor("BF16", 32, 64), "b": Tensor("F32", 2, 8), "s": Tensor("F32", 1, 4)}


def test_a_long_header_takes_a_second_read(tmp_path: Path) -> None:
    tensors = {f"model.layers.{n}.weight": ("F16", [1], 2) for n in range(5000)}
    (tmp_path / FILE).write_bytes(safetensors(tensors))
    assert len(read(tmp_path)) == 5000


def entry(**changes: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F16", "shape": [4], "data_offsets": [0, 8]} | changes}


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        (b"{", b"", "not valid JSON"),
        (b"\xff\xfe", b"", "not valid JSON"),
        (b"[" * 100_000, b"", "not valid JSON"),
        (b'{"a": ' * 100_000, b"", "not valid JSON"),
        ([], b"", "not a JSON object"),
        (entry(), b"\0" * 9, "holds 9 bytes"),
        (entry(data_offsets=[2, 10]), b"\0" * 10, "overlap or leave gaps"),
        (entry() | {"b": entry()["a"]}, b"\0" * 8, "overlap or leave gaps"),
        (entry(data_offsets=[8, 0]), b"\0" * 8, "malformed"),
        (entry(data_offsets=[-8, 0]), b"\0" * 8, "malformed"),
        (entry(data_offsets=[0]), b"\0" * 8, "malformed"),
        (entry(data_offsets=[0, 10**30]), b"\0" * 8, "malformed"),
        (entry(data_offsets=[0, True]), b"\0", "malformed"),
        (entry(shape=[5]), b"\0" * 8, "malformed"),
        (entry(shape="4"), b"\0" * 8, "malformed"),
        (entry(shape=[4.0]), b"\0" * 8, "malformed"),
        (entry(shape=[10**4000] * 1000), b"\0" * 8, "malformed"),
        (entry(shape=[2**62] * 30), b"\0" * 8, "malformed"),
        (entry(dtype=1), b"\0" * 8, "malformed"),
        (entry(dtype="F16\0"), b"\0" * 8, "malformed"),
        ({"a": 3}, b"", "malformed"),
    ],
)
def test_corrupt_headers_are_terminal_and_named(tmp_path: Path, header: Any, data: bytes, words: str) -> None:
    (tmp_path / FILE).write_bytes(with_header(header, data))
    with pytest.raises(MetadataError, match=words) as raised:
        read(tmp_path)
    assert not raised.value.retryable
    assert str(tmp_path / FILE) in str(raised.value)


def test_a_file_that_is_still_copied_is_retryable(tmp_path: Path) -> None:
    whole = safetensors({"a": ("F16", [4], 8)})
    for length in (0, 7, 8, 20, len(whole) - 1):
        (tmp_path / FILE).write_bytes(whole[:length])
        with pytest.raises(MetadataError) as raised:
            read(tmp_path)
        assert raised.value.retryable, length


def test_lengths_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / FILE
    for content in (b"", b"1234567", struct.pack("<Q", 1), struct.pack("<Q", 2**63) + b"x" * 100):
        path.write_bytes(content)
        with pytest.raises(MetadataError):
            read(tmp_path)
    with path.open("wb") as file:  # sparse: large enough for its header, which is above the limit
        file.write(struct.pack("<Q", MAX_HEADER_BYTES + 1))
        file.truncate(2 * MAX_HEADER_BYTES)
    with pytest.raises(MetadataError, match="limit"):
        read(tmp_path)
