"""Reads the tensors of a safetensors file from its header alone.

The format: eight bytes of little-endian header length, the header (a JSON object: tensor name to dtype, shape and data
offsets), then the data, which the tensors cover without gaps. The header is untrusted, so everything is checked.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from controller.model_files.files import MetadataError, ModelFiles, parse_object, where

MAX_HEADER_BYTES: Final = 64 * 2**20  # the format's own limit is 100 MB; the largest public models stay under 20 MB
# The first read. Headers are mostly shorter, so a hub gets one request.
_FIRST_BYTES: Final = 128 * 2**10
_MAX_COUNT: Final = 2**63  # multiplying larger numbers takes time, and no file needs them
_MAX_DIMENSIONS: Final = 32
_MAX_NAME: Final = 32
_LENGTH: Final = struct.Struct("<Q")
_BITS: Final[Mapping[str, int]] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a header. `size_bytes` is from its offsets."""

    dtype: str
    elements: int
    size_bytes: int


def header_text(files: ModelFiles, name: str) -> bytes:
    """The raw header of a file.

    Raises:
        MetadataError: retryable if the file cannot be read or is too short, terminal if the header is beyond limits.
    """
    size = files.sizes[name]
    first = files.read(name, 0, min(size, _FIRST_BYTES))
    length = _header_length(first[: _LENGTH.size], size, where(files, name))
    end = _LENGTH.size + length
    text = first[_LENGTH.size : end]
    if end > len(first):
        text += files.read(name, len(first), end - len(first))
    return text


def parse_header(text: bytes, file_bytes: int, source: str) -> dict[str, Tensor]:
    """The tensors of a header, checked against the length of its file.

    Raises:
        MetadataError: terminal, or retryable if the file is too short; names the source.
    """
    header = parse_object(text, f"the header of {source}")
    header.pop("__metadata__", None)
    spans: list[tuple[int, int]] = []
    tensors = {}
    for name, entry in header.items():
        tensors[name], span = _tensor(name, entry, source)
        spans.append(span)
    _check_cover(sorted(spans), file_bytes - _LENGTH.size - len(text), source)
    return tensors


def _header_length(prefix: bytes, file_bytes: int, source: str) -> int:
    if len(prefix) < _LENGTH.size:
        raise MetadataError(f"{source} is too short to be safetensors; copy the file again", retryable=True)
    length: int = _LENGTH.unpack(prefix)[0]
    if length > min(MAX_HEADER_BYTES, file_bytes - _LENGTH.size):
        raise MetadataError(
            f"{source} of {file_bytes} bytes claims a header of {length} (limit {MAX_HEADER_BYTES}); replace the file",
            retryable=length <= MAX_HEADER_BYTES,  # it may still be copied
        )
    return length


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_COUNT


def _tensor(name: str, entry: Any, source: str) -> tuple[Tensor, tuple[int, int]]:
    wrong = MetadataError(
        f"{source}: the header's entry {name[:200]!r} is malformed; replace the file", retryable=False
    )
    if not isinstance(entry, dict):
        raise wrong
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(offsets, list):
        raise wrong
    if len(offsets) != 2 or len(shape) > _MAX_DIMENSIONS or not dtype.isidentifier() or len(dtype) > _MAX_NAME:  # noqa: PLR2004
        raise wrong
    if not all(map(_is_count, [*shape, *offsets])) or offsets[0] > offsets[1]:
        raise wrong
    elements, size_bytes = prod(shape), offsets[1] - offsets[0]
    if dtype in _BITS and (elements * _BITS[dtype] + 7) // 8 != size_bytes:
        raise wrong
    return Tensor(dtype, elements, size_bytes), (offsets[0], offsets[1])


def _check_cover(spans: list[tuple[int, int]], data_bytes: int, source: str) -> None:
    """Checks that the tensors cover the data exactly. An overlap would count twice, a short file is incomplete."""
    end = 0
    for begin, stop in spans:
        if begin != end:
            raise MetadataError(f"{source}: tensors overlap or leave gaps; replace the file", retryable=False)
        end = stop
    if end != data_bytes:
        raise MetadataError(
            f"{source} holds {data_bytes} bytes of tensors, its header says {end}; copy the file again",
            retryable=end > data_bytes,  # a short one may still be copied
        )
