"""A model's files as the readers see them: names, sizes and ranges of bytes, be they in a folder or on a hub."""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol, TypeVar

from controller.model_files.errors import MetadataError

MAX_FILES: Final = 20_000
_POINTER: Final = b"version https://git-lfs"  # how a file begins that stands for one that Git LFS did not fetch
_POINTER_MAX_BYTES: Final = 1024

T = TypeVar("T")


class ModelFiles(Protocol):
    """One model's files on the top floor of its folder or repository.

    Attributes:
        name: how messages call the model.
        sizes: bytes of each file, by name.
        revision: the commit that is read; None: a folder has none.
    """

    name: str
    sizes: Mapping[str, int]
    revision: str | None

    def read(self, name: str, start: int, length: int) -> bytes:
        """`length` bytes of a file from `start` on; fewer only where it ends.

        Raises:
            MetadataError: retryable where it cannot be read now.
        """

    def each(self, function: Callable[[str], T], names: Iterable[str]) -> Iterator[T]:
        """The function's results in the names' order; several at once where that is quicker."""


class LocalFolder:
    """The files of a folder, links to files among them; what is in folders below does not count.

    Raises:
        MetadataError: retryable where there is no such folder (yet).
    """

    revision: str | None = None

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._folder = folder
        try:
            with os.scandir(folder) as entries:
                self.sizes: Mapping[str, int] = dict(_regular_files(entries, folder))
        except OSError as error:
            raise MetadataError(
                f"{folder} is not a folder that the controller can read ({error.strerror or error}); create it there, "
                "or give resources.gpu_memory",
                retryable=True,
            ) from error

    def read(self, name: str, start: int, length: int) -> bytes:
        """See ModelFiles."""
        try:
            with (self._folder / name).open("rb") as file:
                file.seek(start)
                return file.read(length)
        except OSError as error:
            raise MetadataError(
                f"{self._folder / name} cannot be read: {error.strerror or error}", retryable=True
            ) from error

    def each(self, function: Callable[[str], T], names: Iterable[str]) -> Iterator[T]:
        """One after another: a disk is quick."""
        return map(function, names)


def _regular_files(entries: Iterable[os.DirEntry[str]], folder: Path) -> Iterator[tuple[str, int]]:
    for n, entry in enumerate(entries):
        if n >= MAX_FILES:
            raise MetadataError(f"{folder} holds more than {MAX_FILES} entries; is it a model's?", retryable=False)
        try:
            found = entry.stat()
        except OSError as error:  # a link to nowhere or to itself, or gone meanwhile
            if error.errno in (errno.ENOENT, errno.ELOOP):
                continue
            raise
        if stat.S_ISREG(found.st_mode):  # a pipe would keep its reader for ever
            yield entry.name, found.st_size


def where(files: ModelFiles, name: str) -> str:
    """How messages call one of the files; whatever is not printable is escaped, since anybody may have named it."""
    shown = name if name.isprintable() else repr(name)
    return f"{files.name}/{shown}"


def refuse_pointer(files: ModelFiles, name: str) -> None:
    """Raises MetadataError, retryable, where Git LFS has yet to put the file in the place of its pointer."""
    if files.sizes[name] <= _POINTER_MAX_BYTES and files.read(name, 0, len(_POINTER)) == _POINTER:
        raise MetadataError(f"{where(files, name)} is only a pointer of Git LFS; run: git lfs pull", retryable=True)
