"""Makes the files of tiny models."""

import json
import struct
from pathlib import Path
from typing import Any

Tensors = dict[str, tuple[str, list[int], int]]  # name: dtype, shape, bytes


def safetensors(tensors: Tensors) -> bytes:
    """A file with these tensors, all zero."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    return with_header(header, b"\0" * end)


def with_header(header: Any, data: bytes = b"") -> bytes:
    """A file with this header, valid or not, and this data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def model_folder(folder: Path, tensors: Tensors, config: dict[str, Any] | None = None) -> Path:
    """A model in one file, with its config."""
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(safetensors(tensors))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def sparse_safetensors(file: Path, size: int, *, dtype: str = "BF16") -> None:
    """A sparse file with one tensor of that many bytes."""
    width = {"BF16": 2, "F32": 4}[dtype]
    header = {"weight": {"dtype": dtype, "shape": [size // width], "data_offsets": [0, size]}}
    start = with_header(header)
    with file.open("wb") as out:
        out.write(start)
        out.truncate(len(start) + size)
