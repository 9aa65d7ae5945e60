"""Finds the weights among a model's files and adds them up. If they exist in two formats, one counts."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, Literal

from controller.model_files.files import MetadataError, ModelFiles, read_object, refuse_pointer, where
from controller.model_files.safetensors import Tensor, header_text, parse_header

SINGLE_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"
BIN_FILE: Final = "pytorch_model.bin"
ADAPTER_FILE: Final = "adapter_model.safetensors"
ADAPTER_BIN_FILE: Final = "adapter_model.bin"
BIN_INDEX_FILE: Final = "pytorch_model.bin.index.json"
MAX_INDEX_BYTES: Final = 64 * 2**20
MAX_SHARDS: Final = 4096
MAX_HEADERS_BYTES: Final = 128 * 2**20  # of all files together; as Python objects they take about ten times that
MAX_DTYPES: Final = 64
_FORMATS: Final = (  # best first
    ("safetensors", SINGLE_FILE, INDEX_FILE, "*.safetensors"),
    ("bin", BIN_FILE, BIN_INDEX_FILE, "*.bin"),
)
# Files that are not the model's weights: the same weights in the vendor's own format, or training state.
_NOT_THE_MODEL: Final = (
    "consolidated*", "adapter_model*", "training_args*", "optimizer*", "scheduler*", "rng_state*", "random_states*",
)  # fmt: skip
_PART: Final = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<parts>\d{5})\.")


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of one format. Of `.bin` files only the length is known, because reading them would run their code."""

    format: Literal["safetensors", "bin"]
    size_bytes: int
    dtypes: Mapping[str, int] = field(default_factory=dict)  # bytes
    parameters: int | None = None


def read_weights(files: ModelFiles) -> Weights:
    """Finds the weights of a model or an adapter, in the order of the engines.

    Safetensors come before `.bin`, the usual file name before other names, and a model before an adapter next to it.

    Raises:
        MetadataError: retryable if files are missing, terminal if one is corrupt; names the file.
    """
    for format_, single, index, pattern in _FORMATS:
        weight_map = None
        if single in files.sizes:
            names = [single]
        elif index in files.sizes:
            names, weight_map = _indexed(files, index)
        else:
            names = _unindexed(files, pattern)
        if names:
            return _safetensors(files, names, weight_map) if format_ == "safetensors" else _bin(files, names)
    return _other_weights(files)


def _other_weights(files: ModelFiles) -> Weights:
    """The weights of a folder without the usual files: the vendor's own format, or an adapter."""
    names = sorted(files.sizes)
    if vendors := [name for name in names if fnmatchcase(name, "consolidated*.safetensors")]:
        return _safetensors(files, vendors)
    if ADAPTER_FILE in files.sizes:
        return _safetensors(files, [ADAPTER_FILE])
    if ADAPTER_BIN_FILE in files.sizes:
        return _bin(files, [ADAPTER_BIN_FILE])
    other = next((n for n in names if n.endswith((".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx"))), None)
    if other is not None:
        raise MetadataError(
            f"{where(files, other)}: no engine here loads this format; convert it to safetensors",
            retryable=False,
        )
    raise MetadataError(
        f"{files.name} holds no weights (yet): neither safetensors, nor .bin, nor .gguf", retryable=True
    )


def _unindexed(files: ModelFiles, pattern: str) -> list[str]:
    """The files of a format without an index, sorted, except those that are not the model's weights."""
    names = sorted(name for name in files.sizes if fnmatchcase(name, pattern))
    own = [name for name in names if not any(fnmatchcase(name, other) for other in _NOT_THE_MODEL)]
    parts = Counter((part["stem"], int(part["parts"])) for name in own if (part := _PART.match(name)))
    for (stem, needed), present in parts.items():
        if present < needed:
            raise MetadataError(f"{where(files, stem)}: {present} of {needed} parts are there (yet)", retryable=True)
    return own


def _indexed(files: ModelFiles, index: str) -> tuple[list[str], dict[str, str]]:
    """The files of an index, and the file of each tensor. The index's sizes are not used."""
    weight_map = read_object(files, index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise MetadataError(f"{where(files, index)} has no weight_map; replace the file", retryable=False)
    for shard in weight_map.values():
        if not isinstance(shard, str) or "/" in shard or "\\" in shard:
            raise MetadataError(
                f"{where(files, index)} names {shard!r:.200}, which is not a file of its own folder", retryable=False
            )
    shards = sorted(set(weight_map.values()))
    if len(shards) > MAX_SHARDS:
        raise MetadataError(f"{where(files, index)} names {len(shards)} files, more than {MAX_SHARDS}", retryable=False)
    for shard in shards:
        if shard not in files.sizes:
            raise MetadataError(f"{where(files, shard)} is not there (yet); the index names it", retryable=True)
    return shards, weight_map


def _safetensors(files: ModelFiles, names: list[str], weight_map: Mapping[str, str] | None = None) -> Weights:
    if len(names) > MAX_SHARDS:
        raise MetadataError(f"{files.name} has {len(names)} files of weights, more than {MAX_SHARDS}", retryable=False)
    tensors: dict[str, Tensor] = {}
    read_bytes = 0
    for name in names:
        refuse_pointer(files, name)
    for name, text in zip(names, files.each(lambda name: header_text(files, name), names), strict=True):
        read_bytes += len(text)
        if read_bytes > MAX_HEADERS_BYTES:
            raise MetadataError(f"{files.name}: the headers exceed {MAX_HEADERS_BYTES} bytes in all", retryable=False)
        entries = parse_header(text, files.sizes[name], where(files, name))
        # A shard may hold tensors that the index places in another file, which counts.
        tensors.update((t, v) for t, v in entries.items() if weight_map is None or weight_map.get(t) == name)
    missing = next((t for t in weight_map or () if t not in tensors), None)
    if weight_map is not None and missing is not None:
        raise MetadataError(f"{where(files, weight_map[missing])} lacks tensor {missing!r:.200}", retryable=False)
    return _sum(files, tensors)


def _sum(files: ModelFiles, tensors: Mapping[str, Tensor]) -> Weights:
    dtypes: Counter[str] = Counter()
    for tensor in tensors.values():
        dtypes[tensor.dtype] += tensor.size_bytes
    if len(dtypes) > MAX_DTYPES:
        raise MetadataError(
            f"{files.name} has tensors of {len(dtypes)} dtypes, more than {MAX_DTYPES}", retryable=False
        )
    return Weights(
        "safetensors", _not_empty(files, dtypes.total()), dict(dtypes), sum(t.elements for t in tensors.values())
    )


def _bin(files: ModelFiles, names: list[str]) -> Weights:
    for name in names:
        refuse_pointer(files, name)
    return Weights("bin", _not_empty(files, sum(files.sizes[name] for name in names)))


def _not_empty(files: ModelFiles, size_bytes: int) -> int:
    if size_bytes == 0:
        raise MetadataError(f"{files.name}: the weights are empty; copy the model again", retryable=False)
    return size_bytes
