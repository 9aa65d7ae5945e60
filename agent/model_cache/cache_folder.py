"""The cache's folder: which models it holds, which tokens may read them, when each was last used. Blocks.

The layout is the hub library's, so servers find the models. What Gpuward knows of each stands beside it, in `.gpuward`;
only models that it fetched are ever removed.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from agent.decide.eviction import CachedModel

_OWN: Final = ".gpuward"
_MOST_READERS: Final = 1_000


def folder_name(repo: str) -> str:
    """The hub library's name for a repository's folder."""
    return "models--" + repo.replace("/", "--")


def lock_path(cache_dir: Path, repo: str) -> Path:
    """The file that is locked while a repository is fetched or removed."""
    return cache_dir / _OWN / f"{folder_name(repo)}.lock"


def digest(token: str) -> str:
    """By which a token is remembered."""
    return hashlib.sha256(token.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _Note:
    """What is noted of one repository.

    Attributes:
        repo: org/name.
        used_s: seconds since 1970.
        is_public: readable without a token.
        readers: digests of tokens that could read it.
        revisions: names that were asked for, with the commit of each, once it was fetched.
    """

    repo: str
    used_s: float = 0.0
    is_public: bool = False
    readers: tuple[str, ...] = ()
    revisions: Mapping[str, str] = field(default_factory=dict)


class CacheFolder:
    """All models in one folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def prepare(self) -> None:
        """Makes the folder, readable by all accounts of the host."""
        self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
        (self.path / _OWN).mkdir(mode=0o700, exist_ok=True)

    def models(self) -> list[CachedModel]:
        """What is there, with parts."""
        found = []
        for path in self._notes():
            note = self._read(path)
            if note is not None:
                size = _size(self.path / folder_name(note.repo))
                found.append(CachedModel(note.repo, size, note.used_s, tuple(sorted(note.revisions.items()))))
        return sorted(found, key=lambda one: one.repo)

    def note_use(self, repo: str, now_s: float) -> None:
        """A process waits for it or starts with it."""
        self._write(replace(self._note(repo), used_s=now_s))

    def note_fetched(self, repo: str, revision: str, commit: str, token: str, *, is_public: bool) -> None:
        """It is there, and this token may read it."""
        note = self._note(repo)
        readers = tuple(dict.fromkeys((*note.readers, digest(token))))[-_MOST_READERS:]
        revisions = {**note.revisions, revision: commit, commit: commit}
        self._write(replace(note, is_public=is_public, readers=readers, revisions=revisions))

    def note_refused(self, repo: str, token: str) -> None:
        """The hub lets this token read it no longer."""
        note = self._note(repo)
        readers = tuple(one for one in note.readers if one != digest(token))
        self._write(replace(note, is_public=False, readers=readers))

    def may_use(self, repo: str, revision: str, token: str) -> bool:
        """Whether it is there whole, and this token could read it when the hub was last asked."""
        note = self._note(repo)
        commit = note.revisions.get(revision)
        allowed = note.is_public or digest(token) in note.readers
        return allowed and commit is not None and (self.path / folder_name(repo) / "snapshots" / commit).is_dir()

    def remove(self, repo: str) -> None:
        """Removes a repository's files and its note."""
        shutil.rmtree(self.path / folder_name(repo), ignore_errors=True)
        with suppress(OSError):
            self._note_path(repo).unlink()

    def free_bytes(self) -> int:
        """Of the disk."""
        return shutil.disk_usage(self.path).free

    def _notes(self) -> Collection[Path]:
        try:
            return sorted((self.path / _OWN).glob("*.json"))
        except OSError:
            return ()

    def _note_path(self, repo: str) -> Path:
        return self.path / _OWN / f"{folder_name(repo)}.json"

    def _note(self, repo: str) -> _Note:
        return self._read(self._note_path(repo)) or _Note(repo)

    def _read(self, path: Path) -> _Note | None:
        try:
            known: dict[str, Any] = json.loads(path.read_text())
            return _Note(**{**known, "readers": tuple(known["readers"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None  # it is written anew at the next use

    def _write(self, note: _Note) -> None:
        path = self._note_path(note.repo)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(note)))
        new.replace(path)


def _size(folder: Path) -> int:
    """Bytes of its blobs on the disk."""
    total = 0
    with suppress(OSError):
        for entry in os.scandir(folder / "blobs"):
            with suppress(OSError):
                total += entry.stat(follow_symlinks=False).st_size
    return total
