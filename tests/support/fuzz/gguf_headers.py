"""GGUF files: facts or a clear error, and the library's reader finds the same tensors in what we take."""

import os
from collections import Counter
from typing import Any, Final

from gguf import GGUFReader
from gguf.constants import Keys

from controller.model_files.files import MetadataError
from controller.model_files.gguf_header import GgufHeader, read_header
from support.builders.memory_files import MemoryFiles
from support.builders.untrusted_model import read


def _keys(group: type) -> set[str]:
    """The names of keys, for one architecture."""
    names = set()
    for value in vars(group).values():
        if isinstance(value, str) and value.startswith("{arch}."):
            names.add(value.replace("{arch}", "gemma3"))
        elif isinstance(value, type):
            names |= _keys(value)
    return names


WORDS: Final = (
    "GGUF\x03\x00\x00\x00", "general.architecture", "general.alignment", "gemma3", "mamba2", "qwen3next", "nemotron_h",
    "general.type", *sorted(_keys(Keys)),
    *(chr(number) + 3 * "\0" for number in range(13)), *(chr(number) + 7 * "\0" for number in (0, 1, 2, 8, 32)),
    8 * "\xff", "blk.0.attn_k.weight",
)  # fmt: skip


def check(data: bytes) -> None:
    """The file gives facts from which every engine computes a need, or an error."""
    read({"m.gguf": data})
    try:
        header = read_header(MemoryFiles({"m.gguf": data}), "m.gguf")
    except MetadataError:
        return
    theirs = _read_by_library(data)
    if theirs is not None:
        _compare(header, theirs)


def _read_by_library(data: bytes) -> GGUFReader | None:
    """What the library makes of the file; None: it refuses it, in one of the many ways in which it does."""
    file = os.memfd_create("m.gguf")
    try:
        os.write(file, data)
        return GGUFReader(f"/proc/self/fd/{file}")
    except (ValueError, KeyError, IndexError, TypeError, OverflowError):
        return None
    finally:
        os.close(file)


def _compare(ours: GgufHeader, theirs: Any) -> None:
    assert ours.parameters == sum(int(tensor.n_elements) for tensor in theirs.tensors)
    sizes: Counter[str] = Counter()
    for tensor in theirs.tensors:
        sizes[tensor.tensor_type.name] += int(tensor.n_bytes)
    assert ours.dtypes == sizes
    assert ours.tensors == {tensor.name: int(tensor.n_bytes) for tensor in theirs.tensors}
    fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    for key, value in ours.values.items():
        if isinstance(value, int | str):
            assert fields[key].contents() == value
