"""Reads what a local folder's safetensors hold, from their headers alone: no tensor is touched.

The format: eight bytes of little-endian header length, the header (a JSON object: tensor name to dtype, shape and data
offsets), then the data, which the tensors cover without holes. Nothing of it is believed before it was checked.
"""

import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

from gpuward.controller.models.errors import MetadataError
from gpuward.controller.models.jsonfile import parse_object, read_object

SINGLE_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"
MAX_HEADER_BYTES: Final = 64 * 2**20  # the format's own limit is 100 MB; the largest public models stay under 20 MB
MAX_INDEX_BYTES: Final = 64 * 2**20
MAX_SHARDS: Final = 4096
_LENGTH: Final = struct.Struct("<Q")
_BITS: Final[Mapping[str, int]] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a header. `size_bytes` as its offsets say."""

    dtype: str
    elements: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TensorTotals:
    """What a model's tensors come to."""

    size_bytes: int
    elements: Mapping[str, int]  # by dtype
    files: int

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], files: int) -> "TensorTotals":
        """Adds up tensors."""
        elements: Counter[str] = Counter()
        for tensor in tensors.values():
            elements[tensor.dtype] += tensor.elements
        return cls(sum(t.size_bytes for t in tensors.values()), dict(elements), files)


def folder_totals(folder: Path) -> TensorTotals:
    """Adds up the tensors of a model's folder; weights in other formats beside them are not counted.

    Raises:
        MetadataError: retryable where folder or shards are missing, terminal where a file is corrupt.
    """
    if not folder.is_dir():
        raise MetadataError(
            f"{folder} is not a folder that the controller can read; create it there, or give resources.gpu_memory",
            retryable=True,
        )
    if (folder / SINGLE_FILE).exists():
        return TensorTotals.of(read_header(folder / SINGLE_FILE), files=1)
    if (folder / INDEX_FILE).exists():
        return _sharded_totals(folder)
    others = sorted(p.name for pattern in ("*.bin", "*.pt", "*.gguf") for p in folder.glob(pattern))
    if others:
        raise MetadataError(
            f"{folder} holds {others[0]} but no {SINGLE_FILE}; convert it, or give resources.gpu_memory",
            retryable=False,
        )
    raise MetadataError(f"{folder} holds neither {SINGLE_FILE} nor {INDEX_FILE} yet", retryable=True)


def _sharded_totals(folder: Path) -> TensorTotals:
    index = folder / INDEX_FILE
    weight_map = read_object(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise MetadataError(f"{index} has no weight_map; replace the file", retryable=False)
    shards = sorted({str(shard) for shard in weight_map.values()})
    if len(shards) > MAX_SHARDS:
        raise MetadataError(f"{index} names {len(shards)} files, more than {MAX_SHARDS}", retryable=False)
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        if Path(shard).name != shard:
            raise MetadataError(f"{index} names {shard!r}, which is no file of its own folder", retryable=False)
        found = read_header(folder / shard)
        tensors.update({name: tensor for name, tensor in found.items() if weight_map.get(name) == shard})
    missing = next((name for name in weight_map if name not in tensors), None)
    if missing is not None:
        raise MetadataError(f"{folder / str(weight_map[missing])} lacks tensor {missing!r}", retryable=False)
    return TensorTotals.of(tensors, files=len(shards))


def read_header(path: Path) -> dict[str, Tensor]:
    """Reads and checks one file's header.

    Raises:
        MetadataError: retryable where the file cannot be read, terminal where it is corrupt; names the file.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            prefix = file.read(_LENGTH.size)
            length = _header_length(prefix, size, path)
            text = file.read(length)
    except OSError as error:
        raise MetadataError(f"{path} cannot be read: {error.strerror or error}", retryable=True) from error
    header = parse_object(text, f"the header of {path}")
    data_bytes = size - _LENGTH.size - length
    header.pop("__metadata__", None)
    spans: list[tuple[int, int]] = []
    tensors = {}
    for name, entry in header.items():
        tensors[name], span = _tensor(name, entry, path)
        spans.append(span)
    _check_cover(sorted(spans), data_bytes, path)
    return tensors


def _header_length(prefix: bytes, file_bytes: int, path: Path) -> int:
    if len(prefix) < _LENGTH.size:
        raise MetadataError(f"{path} is too short to be safetensors; replace the file", retryable=False)
    length: int = _LENGTH.unpack(prefix)[0]
    if length > min(MAX_HEADER_BYTES, file_bytes - _LENGTH.size):
        raise MetadataError(
            f"{path} of {file_bytes} bytes claims a header of {length} (limit {MAX_HEADER_BYTES}); replace the file",
            retryable=False,
        )
    return length


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _tensor(name: str, entry: Any, path: Path) -> tuple[Tensor, tuple[int, int]]:
    """One entry of a header, with its span in the data."""
    wrong = MetadataError(f"{path}: the header's entry {name!r} is malformed; replace the file", retryable=False)
    if not isinstance(entry, dict):
        raise wrong
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(offsets, list):
        raise wrong
    if len(offsets) != 2 or not all(map(_is_count, [*shape, *offsets])) or offsets[0] > offsets[1]:  # noqa: PLR2004
        raise wrong
    elements, size_bytes = prod(shape), offsets[1] - offsets[0]
    if dtype in _BITS and (elements * _BITS[dtype] + 7) // 8 != size_bytes:
        raise wrong
    return Tensor(dtype, elements, size_bytes), (offsets[0], offsets[1])


def _check_cover(spans: list[tuple[int, int]], data_bytes: int, path: Path) -> None:
    """The tensors must cover the data exactly: an overlap would count twice, a short file is a broken copy."""
    end = 0
    for begin, stop in spans:
        if begin != end:
            raise MetadataError(f"{path}: tensors overlap or leave holes; replace the file", retryable=False)
        end = stop
    if end != data_bytes:
        raise MetadataError(
            f"{path} holds {data_bytes} bytes of tensors, its header says {end}; copy the file again", retryable=False
        )
