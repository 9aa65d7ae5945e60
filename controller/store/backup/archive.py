"""The file of a backup: a ZIP with one part for each table, and a manifest that names the digest of each."""

import hashlib
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from pydantic import BaseModel, ConfigDict

FORMAT: Final = 1
_MANIFEST: Final = "manifest.json"
_DIGEST: Final = "manifest.sha256"
_CHUNK: Final = 2**20
_MAX_MANIFEST: Final = 2**22
_LEVEL: Final = 6
# Errors of reading a damaged ZIP; pydantic's ValidationError is a ValueError, NotImplementedError a RuntimeError.
_DAMAGE: Final = (zipfile.BadZipFile, zlib.error, OSError, EOFError, KeyError, ValueError, RuntimeError)


class BackupFileError(Exception):
    """The file cannot be written, or is not a complete backup; the message has the reason."""


class Part(BaseModel):
    """A table. `columns`: their names, in the order of its lines, which are PostgreSQL's text format of COPY."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    table: str
    columns: tuple[str, ...]
    rows: int
    bytes: int
    sha256: str


class Partition(BaseModel):
    """A partition that the rows of its table need."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    table: str
    bounds: str  # as SQL: FOR VALUES FROM ... TO ...


class Manifest(BaseModel):
    """The contents of a backup. Parts are in an order in which they can be loaded: tables after those they refer to."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int
    gpuward: str  # its version
    postgres: str
    schema_revision: str
    taken_at: str  # by the database's clock, with its zone
    term: int
    parts: tuple[Part, ...]
    partitions: tuple[Partition, ...] = ()


class BackupWriter:
    """Writes a backup. Use `writing`."""

    def __init__(self, file: zipfile.ZipFile) -> None:
        self._file = file

    @contextmanager
    def part(self, table: str) -> "Iterator[PartWriter]":
        """A part, open for writing; only one part may be open."""
        with self._file.open(_name(table), "w", force_zip64=True) as out:
            yield PartWriter(out)

    def manifest(self, manifest: Manifest) -> None:
        """Writes the manifest, after all parts."""
        text = manifest.model_dump_json(indent=1).encode()
        self._file.writestr(_MANIFEST, text)
        self._file.writestr(_DIGEST, hashlib.sha256(text).hexdigest())


class PartWriter:
    """Counts and digests what it writes."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._digest = hashlib.sha256()
        self.bytes = 0

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    async def write(self, data: bytes) -> None:
        """The driver's interface for COPY."""
        self._digest.update(data)
        self.bytes += len(data)
        self._out.write(data)


@contextmanager
def writing(path: Path, *, overwrite: bool) -> Iterator[BackupWriter]:
    """A backup of mode 0600 that appears under its name once it is complete and on disk; after a failure nothing is.

    Raises:
        BackupFileError: the file exists, or cannot be written.
    """
    if path.exists() and not overwrite:
        raise BackupFileError(f"{path} exists; choose another name, or add --overwrite")
    partial = path.with_name(f".{path.name}.partial")
    try:
        with _private(partial) as raw:
            with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as file:
                yield BackupWriter(file)
            raw.flush()
            os.fsync(raw.fileno())
        partial.replace(path)
        _sync_folder(path.absolute().parent)
    except OSError as error:
        if error.filename is None and error.errno is None:
            raise
        raise BackupFileError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            partial.unlink()


def _private(path: Path) -> IO[bytes]:
    with suppress(FileNotFoundError):
        path.unlink()  # left by a run that was killed
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w+b")


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


class BackupReader:
    """Reads a backup. Use `reading`."""

    def __init__(self, path: Path, file: zipfile.ZipFile, manifest: Manifest) -> None:
        self._path = path
        self._file = file
        self.manifest = manifest

    def chunks(self, part: Part) -> Iterator[bytes]:
        """The lines of a part, in chunks.

        Raises:
            BackupFileError: they differ from the manifest.
        """
        digest, size, lines = hashlib.sha256(), 0, 0
        try:
            with self._file.open(_name(part.table)) as source:
                while data := source.read(_CHUNK):
                    digest.update(data)
                    size += len(data)
                    lines += data.count(b"\n")
                    if size > part.bytes:
                        break  # a damaged file may hold far more than that
                    yield data
        except _DAMAGE as error:
            raise BackupFileError(f"{self._path} is damaged at {part.table}: {error}; use another backup") from error
        if (digest.hexdigest(), size, lines) != (part.sha256, part.bytes, part.rows):
            raise BackupFileError(
                f"{self._path} is damaged: {part.table} does not match its digest; use another backup"
            )

    def verify(self) -> None:
        """Reads it completely; raises BackupFileError if it is damaged."""
        for part in self.manifest.parts:
            for _ in self.chunks(part):
                pass


@contextmanager
def reading(path: Path) -> Iterator[BackupReader]:
    """An open backup.

    Raises:
        BackupFileError: it cannot be read, is not a backup, or is damaged.
    """
    try:
        file = zipfile.ZipFile(path)
    except FileNotFoundError as error:
        raise BackupFileError(f"{path} does not exist") from error
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        raise BackupFileError(f"{path} is damaged or not a backup: {error}; use another backup") from error
    except OSError as error:
        raise BackupFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    with file:
        yield BackupReader(path, file, _manifest(path, file))


def _manifest(path: Path, file: zipfile.ZipFile) -> Manifest:
    try:
        manifest = Manifest.model_validate_json(_checked_manifest(file))
    except _DAMAGE as error:
        raise BackupFileError(f"{path} is damaged or not a backup: {error}; use another backup") from error
    if manifest.format != FORMAT:
        raise BackupFileError(
            f"{path} has format {manifest.format}, this version reads {FORMAT}; restore it with gpuward "
            f"{manifest.gpuward} or newer"
        )
    return manifest


def _checked_manifest(file: zipfile.ZipFile) -> bytes:
    """The manifest's text; raises ValueError if it was changed."""
    if max(file.getinfo(name).file_size for name in (_MANIFEST, _DIGEST)) > _MAX_MANIFEST:
        raise ValueError("its manifest is too long")
    text = file.read(_MANIFEST)
    if hashlib.sha256(text).hexdigest().encode() != file.read(_DIGEST):
        raise ValueError("its manifest does not match its digest")
    return text


def _name(table: str) -> str:
    return f"tables/{table}.copy"
