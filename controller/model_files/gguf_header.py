"""Reads a GGUF file's header: key-value pairs, then the list of tensors.

The numbers and sizes of types and the names of keys come from the `gguf` library. Its reader is not used: it trusts
every length, and creates several objects for each of the hundred thousands of tokens in a vocabulary.
The format: github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Final, TypeAlias

from gguf.constants import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFValueType, Keys

from controller.model_files.files import MetadataError, ModelFiles, where

MAX_KEYS: Final = 2**16
MAX_TENSORS: Final = 2**17  # the largest public models have under 3,000
MAX_ITEMS: Final = 2**22  # in one array; vocabularies have up to 300,000
MAX_KEPT_ITEMS: Final = 4096  # enough for a number per layer; arrays of the vocabulary are only counted
_MAX_NAME_BYTES: Final = 2**16
_MAX_TEXT_BYTES: Final = 256
_MAX_DIMENSIONS: Final = 4
_MAX_DEPTH: Final = 4  # of arrays within arrays
_MAX_SIZE: Final = 2**63
_VERSIONS: Final = (2, 3)
_MAGIC: Final = b"GGUF"
_SCALARS: Final[Mapping[int, struct.Struct]] = {
    int(GGUFValueType[name]): struct.Struct("<" + code)
    for name, code in {
        "UINT8": "B", "INT8": "b", "UINT16": "H", "INT16": "h", "UINT32": "I", "INT32": "i", "FLOAT32": "f",
        "BOOL": "?", "UINT64": "Q", "INT64": "q", "FLOAT64": "d",
    }.items()
}  # fmt: skip
MAX_HEADER_BYTES: Final = 64 * 2**20  # the largest vocabularies take about 12 MiB
_FIRST_BYTES: Final = 2**20  # then twice as much each time, so that few requests reach a hub
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


class Cursor:
    """A position in a file. Every step is checked before.

    Raises:
        MetadataError: terminal if a step would leave the file, retryable if it cannot be read; names the file.
    """

    def __init__(self, files: ModelFiles, name: str) -> None:
        self._files, self._name = files, name
        self._end = min(files.sizes[name], MAX_HEADER_BYTES)
        self._buffer = b""
        self.at = 0

    def invalid(self, what: str, *, retryable: bool = False) -> MetadataError:
        """The error for an invalid file. `retryable`: it may still be copied."""
        return MetadataError(f"{where(self._files, self._name)}: {what}; replace the file", retryable=retryable)

    def skip(self, length: int) -> int:
        """Moves forward, and returns the old position."""
        at = self.at
        if length > self._end - at:
            raise self.invalid(f"its header exceeds the {self._end} bytes that may be read")
        self.at = at + length
        if self.at > len(self._buffer):
            self._fill()
        return at

    def u32(self) -> int:
        at = self.skip(4)
        return int(_U32.unpack_from(self._buffer, at)[0])

    def u64(self) -> int:
        at = self.skip(8)
        return int(_U64.unpack_from(self._buffer, at)[0])

    def take(self, length: int) -> bytes:
        at = self.skip(length)
        return self._buffer[at : at + length]

    def text(self, max_bytes: int) -> str | None:
        """A string: its length, then UTF-8. None if it is longer than the limit or not UTF-8."""
        length = self.u64()
        if length > max_bytes:
            self.skip(length)
            return None
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            return None

    def _fill(self) -> None:
        wanted = min(max(self.at, 2 * len(self._buffer), _FIRST_BYTES), self._end)
        self._buffer += self._files.read(self._name, len(self._buffer), wanted - len(self._buffer))
        if len(self._buffer) < wanted:  # truncated since its size was read
            raise MetadataError(f"{where(self._files, self._name)} was truncated while it was read", retryable=True)


@dataclass(frozen=True, slots=True)
class ArrayLength:
    """The length of an array that is not kept."""

    items: int


Value: TypeAlias = int | float | bool | str | tuple[int | float | bool, ...] | ArrayLength | None


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """A file's header."""

    values: Mapping[str, Value]  # by key; None for long texts
    dtypes: Mapping[str, int]  # bytes of its tensors by type, such as `Q4_K`
    parameters: int  # elements of its tensors
    tensors: Mapping[str, int]  # bytes of each tensor by name


def read_header(files: ModelFiles, name: str) -> GgufHeader:
    """Reads and checks one file's header.

    Raises:
        MetadataError: retryable if the file cannot be read or is too short for its tensors, terminal if it is corrupt
            or of an unknown version; names the file.
    """
    cursor = Cursor(files, name)
    if cursor.take(len(_MAGIC)) != _MAGIC:
        raise cursor.invalid("not a GGUF file")
    version = cursor.u32()
    if version not in _VERSIONS:  # also rejects big-endian files, whose version is misread here
        raise cursor.invalid(f"unknown GGUF version {version}; must be {_VERSIONS[0]} or {_VERSIONS[1]}")
    tensors, keys = cursor.u64(), cursor.u64()
    if tensors > MAX_TENSORS or keys > MAX_KEYS:
        raise cursor.invalid(f"it claims {tensors} tensors and {keys} keys (limits {MAX_TENSORS} and {MAX_KEYS})")
    values: dict[str, Value] = {}
    for _ in range(keys):
        key = cursor.text(_MAX_NAME_BYTES)
        if key is None:
            raise cursor.invalid("a key's name is not valid text")
        values[key] = _value(cursor, cursor.u32(), depth=0)
    entries = [_tensor(cursor) for _ in range(tensors)]
    _check_cover(cursor, values, entries, files.sizes[name])
    dtypes: dict[str, int] = {}
    for tensor in entries:
        dtypes[tensor.dtype] = dtypes.get(tensor.dtype, 0) + tensor.size_bytes
    elements = sum(tensor.elements for tensor in entries)
    return GgufHeader(values, dtypes, elements, {tensor.name: tensor.size_bytes for tensor in entries})


def _value(cursor: Cursor, kind: int, depth: int) -> Value:
    scalar = _SCALARS.get(kind)
    if scalar is not None:
        value: int | float | bool = scalar.unpack(cursor.take(scalar.size))[0]
        return value
    if kind == GGUFValueType.STRING:
        return cursor.text(_MAX_TEXT_BYTES)
    if kind == GGUFValueType.ARRAY and depth < _MAX_DEPTH:
        return _array(cursor, depth)
    raise cursor.invalid(f"a value has the unknown type {kind}")


def _array(cursor: Cursor, depth: int) -> Value:
    kind, items = cursor.u32(), cursor.u64()
    if items > MAX_ITEMS:
        raise cursor.invalid(f"an array claims {items} items (limit {MAX_ITEMS})")
    scalar = _SCALARS.get(kind)
    if scalar is None:
        for _ in range(items):
            _value(cursor, kind, depth + 1)
        return ArrayLength(items)
    data = cursor.take(scalar.size * items)
    if items > MAX_KEPT_ITEMS:
        return ArrayLength(items)
    return tuple(value for (value,) in scalar.iter_unpack(data))


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    dtype: str
    elements: int
    size_bytes: int
    offset: int  # in the data


def _tensor(cursor: Cursor) -> _Tensor:
    name = cursor.text(_MAX_NAME_BYTES)
    dimensions = cursor.u32()
    if name is None or dimensions > _MAX_DIMENSIONS:
        raise cursor.invalid("a tensor's entry is malformed")
    shape = [cursor.u64() for _ in range(dimensions)]
    kind, offset = cursor.u32(), cursor.u64()
    elements = prod(shape)
    try:
        dtype = GGMLQuantizationType(kind)
    except ValueError as error:
        raise cursor.invalid(f"tensor {name[:100]!r} has the unknown type {kind}") from error
    block, block_bytes = GGML_QUANT_SIZES[dtype]
    if elements >= _MAX_SIZE or elements % block:
        raise cursor.invalid(f"tensor {name[:100]!r} has {elements} elements, which do not form blocks of {block}")
    return _Tensor(name, dtype.name, elements, elements // block * block_bytes, offset)


def _check_cover(cursor: Cursor, values: Mapping[str, Value], tensors: list[_Tensor], file_bytes: int) -> None:
    """Checks that the tensors are in the file and do not overlap, since an overlap would count twice."""
    stated = values.get(Keys.General.ALIGNMENT, GGUF_DEFAULT_ALIGNMENT)
    alignment = stated if isinstance(stated, int) and stated > 0 else GGUF_DEFAULT_ALIGNMENT
    data_bytes = file_bytes - (cursor.at + -cursor.at % alignment)
    end = 0
    for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
        if tensor.offset < end:
            raise cursor.invalid("tensors overlap")
        end = tensor.offset + tensor.size_bytes
    if tensors and end > data_bytes:
        raise cursor.invalid(f"it ends {end - data_bytes} bytes before its tensors do", retryable=True)
