"""Conceals the controller's files from operators, who may name any path as a model's.

Every path without a model gets the same answer after the same time: one that does not exist, a file, another folder, a
closed or too large folder, a device. The log has the reason. Only a folder or file whose content shows that it is a
model's gets the reader's own error.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from controller.model_files.files import LocalFolder, MetadataError, own_account, read_object
from controller.model_files.safetensors import header_text, parse_header

_STEP_S: Final = 0.5  # an answer comes after a multiple of this
_MAX_CONFIG_BYTES: Final = 2**20
_GGUF: Final = b"GGUF"
# Transformers and PEFT write one of these keys into each file of that name.
_SIGNS: Final[Mapping[str, tuple[str, ...]]] = {
    "config.json": ("model_type", "architectures"),
    "adapter_config.json": ("peft_type",),
}

T = TypeVar("T")


class UnreadError(MetadataError):
    """The answer for every path without a model. `detail` is for the log alone."""

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(unread(path), retryable=True)
        self.detail = detail


def unread(path: str) -> str:
    return (
        f"{path}: the controller reads no model there, and its log says why; check the path and that {own_account()} "
        "may read it, or set resources.gpu_memory"
    )


def place_of(path: str) -> Path:
    """The path, normalized as text: the disk would resolve `/closed/../model` only if `/closed` exists."""
    return Path(os.path.normpath(path))


def local_path(source: Mapping[str, Any]) -> str | None:
    path = source.get("gguf", source.get("path"))
    return path if isinstance(path, str) else None


def concealed(source: Mapping[str, Any], read: Callable[[], T]) -> T:
    """The result of reading a source.

    Raises:
        UnreadError: retryable; the path holds no model.
        MetadataError: the reader's error for a model, or for a source on a hub.
    """
    path = local_path(source)
    if path is None:
        return read()
    started_s = time.monotonic()
    try:
        result = read()
    except Exception as error:  # of any reader: its kind would show what is at the path
        if _is_model(place_of(path), gguf="gguf" in source):
            raise
        detail = str(error) or type(error).__name__
    else:
        if _is_model(place_of(path), gguf="gguf" in source):
            return result
        detail = f"{path}: neither a config nor a header shows that it is a model"
    taken_s = time.monotonic() - started_s
    time.sleep(_STEP_S - taken_s % _STEP_S)
    raise UnreadError(path, detail)


def _is_model(path: Path, *, gguf: bool) -> bool:
    try:
        if gguf or path.suffix == ".gguf":
            return _is_gguf(LocalFolder(path.parent), path.name)
        folder = LocalFolder(path)
        return (
            any(_has_sign(folder, name, keys) for name, keys in _SIGNS.items())
            or any(_is_gguf(folder, name) for name in folder.sizes if name.endswith(".gguf"))
            or any(_is_safetensors(folder, name) for name in folder.sizes if name.endswith(".safetensors"))
        )
    except (MetadataError, MemoryError):
        return False


def _is_gguf(folder: LocalFolder, name: str) -> bool:
    return name in folder.sizes and folder.read(name, 0, len(_GGUF)) == _GGUF


def _has_sign(folder: LocalFolder, name: str, keys: tuple[str, ...]) -> bool:
    if name not in folder.sizes:
        return False
    try:
        config = read_object(folder, name, _MAX_CONFIG_BYTES)
    except MetadataError:
        return False
    return any(config.get(key) for key in keys)


def _is_safetensors(folder: LocalFolder, name: str) -> bool:
    try:
        return bool(parse_header(header_text(folder, name), folder.sizes[name], name))
    except MetadataError:
        return False
