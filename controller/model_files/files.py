"""A model's files for the readers: names, sizes and byte ranges, in a folder or on a hub."""

import errno
import json
import os
import pwd
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

MAX_FILES: Final = 20_000
_POINTER: Final = b"version https://git-lfs"  # the beginning of a pointer file that Git LFS has not replaced
_POINTER_MAX_BYTES: Final = 1024

T = TypeVar("T")


class MetadataError(Exception):
    """A model's need could not be read (reason `metadata_unknown`).

    `retryable`: a later try may succeed, for example when the folder appears or the hub answers. A corrupt file is not
    retryable, because its owner must replace it.
    """

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


class GatedModelError(MetadataError):
    """The hub shows the model only to accounts that were granted access (reason `model_gated`)."""


class ModelFiles(Protocol):
    """One model's files at the top level of its folder or repository."""

    name: str  # the model's name in messages
    sizes: Mapping[str, int]  # bytes of each file, by name
    revision: str | None  # the commit that is read; None for a folder

    def read(self, name: str, start: int, length: int) -> bytes:
        """`length` bytes of a file from `start`; fewer only at its end.

        Raises:
            MetadataError: retryable, if it cannot be read now.
        """

    def each(self, function: Callable[[str], T], names: Iterable[str]) -> Iterator[T]:
        """The function's results in the order of the names. Slow sources make several calls at once."""


class LocalFolder:
    """The files of a folder, links to files included; subfolders are ignored.

    Raises:
        MetadataError: retryable, if the folder does not exist (yet).
    """

    revision: str | None = None

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._folder = folder
        try:
            with os.scandir(folder) as entries:
                self.sizes: Mapping[str, int] = dict(_regular_files(entries, folder))
        except OSError as error:
            fix = "create it there"
            if isinstance(error, PermissionError):
                fix = f"let {own_account()} read and enter it, and enter the folders above it"
            raise MetadataError(
                f"{folder}: the controller cannot read this folder ({error.strerror or error}); {fix}, "
                "or set resources.gpu_memory",
                retryable=True,
            ) from error

    def read(self, name: str, start: int, length: int) -> bytes:
        try:
            with (self._folder / name).open("rb") as file:
                file.seek(start)
                return file.read(length)
        except OSError as error:
            fix = f"; let {own_account()} read it" if isinstance(error, PermissionError) else ""
            raise MetadataError(
                f"{self._folder / name} cannot be read: {error.strerror or error}{fix}", retryable=True
            ) from error

    def each(self, function: Callable[[str], T], names: Iterable[str]) -> Iterator[T]:
        return map(function, names)


def own_account() -> str:
    """The account with which the controller reads files, for messages."""
    uid = os.geteuid()
    try:
        return f"the controller's account {pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"the controller's account (uid {uid})"


def _regular_files(entries: Iterable[os.DirEntry[str]], folder: Path) -> Iterator[tuple[str, int]]:
    for n, entry in enumerate(entries):
        if n >= MAX_FILES:
            raise MetadataError(
                f"{folder}: holds more than {MAX_FILES} entries; is it a model folder?", retryable=False
            )
        try:
            status = entry.stat()
        except OSError as error:  # a broken or circular link, or deleted in between
            if error.errno in (errno.ENOENT, errno.ELOOP):
                continue
            raise
        if stat.S_ISREG(status.st_mode):  # reading a pipe could block for ever
            yield entry.name, status.st_size


def where(files: ModelFiles, name: str) -> str:
    """A file's name in messages. Unprintable names are escaped, since names are untrusted."""
    shown = name if name.isprintable() else repr(name)
    return f"{files.name}/{shown}"


def refuse_pointer(files: ModelFiles, name: str) -> None:
    """Raises a retryable MetadataError if the file is a Git LFS pointer."""
    if files.sizes[name] <= _POINTER_MAX_BYTES and files.read(name, 0, len(_POINTER)) == _POINTER:
        raise MetadataError(f"{where(files, name)}: is a Git LFS pointer; run: git lfs pull", retryable=True)


def parse_object(text: bytes, source: str) -> dict[str, Any]:
    """Parses a JSON object. Python's recursion limit bounds its depth.

    Raises:
        MetadataError: terminal; names the source.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MetadataError(f"{source} is not valid JSON ({error}); replace the file", retryable=False) from error
    if not isinstance(value, dict):
        raise MetadataError(f"{source} is not a JSON object; replace the file", retryable=False)
    return value


def read_object(files: ModelFiles, name: str, max_bytes: int) -> dict[str, Any]:
    """Reads a JSON object of at most `max_bytes` from one of a model's files.

    Raises:
        MetadataError: retryable if the file cannot be read, terminal if it is too large or not a JSON object.
    """
    source = where(files, name)
    if files.sizes[name] > max_bytes:
        raise MetadataError(f"{source} is larger than {max_bytes} bytes; replace the file", retryable=False)
    return parse_object(files.read(name, 0, max_bytes), source)
