"""Which files of a repository a model server loads, and how each is checked. Pure."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

# Weights in other formats, which servers do not load where there are safetensors (`download_weights_from_hf` in vLLM's
# weight_utils.py takes the first format that it finds, and ignores `original/`).
_OTHER_WEIGHTS = (
    "*.bin",
    "*.pt",
    "*.pth",
    "*.ckpt",
    "*.h5",
    "*.msgpack",
    "*.tflite",
    "*.onnx",
    "*.onnx_data",
    "*.gguf",
)
_NEVER = (
    "original/*",
    "onnx/*",
    "openvino/*",
    "coreml/*",
    ".git*",
    "*.md",
    "*.png",
    "*.jpg",
    "*.jpeg",
    "*.gif",
    "*.mp4",
)


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository."""

    name: str  # path within the repository
    size: int  # bytes
    etag: str  # its name in the cache: the SHA-256 of large files, else Git's own hash
    is_large: bool  # `etag` is the SHA-256 of its content


def chosen_files(files: Iterable[HubFile]) -> list[HubFile]:
    """The files to fetch. Where there are safetensors, weights in other formats are left out."""
    wanted = [file for file in files if not _matches(file.name, _NEVER)]
    if any(file.name.endswith(".safetensors") for file in wanted):
        wanted = [file for file in wanted if not _matches(file.name, _OTHER_WEIGHTS)]
    return wanted


def hasher_of(file: HubFile) -> "hashlib._Hash":
    """The hash whose digest of the content is the file's etag."""
    if file.is_large:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)  # Git's, of the object


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
