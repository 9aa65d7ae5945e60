"""The cache's folder: which models it holds, which tokens may read them, when each was last used. Blocks.

The layout is the hub library's, so servers find the models. What Gpuward knows of each stands beside it, in `.gpuward`;
only revisions that it fetched are ever removed. Agents of one host may share the folder: a lock stands around each
change of what is noted, and another one, of a repository, around its fetch and its removal.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from agent.decide.eviction import CachedRevision, Use, is_used
from agent.model_cache.file_lock import LockedError, file_lock

_OWN: Final = ".gpuward"
_MOST_READERS: Final = 1_000
_NOTES_LIMIT_S: Final = 10.0  # such a lock is held for milliseconds


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

    @property
    def marks(self) -> Path:
        """The folder in which agents say what they use."""
        return self.path / _OWN / "agents"

    @property
    def room_lock(self) -> Path:
        """The file that is locked while an agent makes room."""
        return self.path / _OWN / "room.lock"

    def prepare(self) -> None:
        """Makes the folder, readable by all accounts of the host."""
        self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
        (self.path / _OWN).mkdir(mode=0o700, exist_ok=True)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Holds the lock of what is noted of all models and their use.

        Raises:
            OSError: it cannot be had.
        """
        with file_lock(self.path / _OWN / "notes.lock", _NOTES_LIMIT_S):
            yield

    def revisions(self) -> list[CachedRevision]:
        """What is there, with parts."""
        found: list[CachedRevision] = []
        for path in self._notes():
            note = self._read(path)
            if note is not None:
                found += self._revisions_of(note)
        return sorted(found, key=lambda one: (one.repo, -one.used_s))

    def _revisions_of(self, note: _Note) -> list[CachedRevision]:
        folder, own = self.path / folder_name(note.repo), self._own_commits(note)
        left = _sizes(folder / "blobs")
        found = []
        snapshots = _snapshots(folder)
        for n, (commit, changed_s) in enumerate(snapshots):
            files = {blob: left[blob] for blob in _blobs_of(folder / "snapshots" / commit) if blob in left}
            names = tuple(sorted(name for name, to in note.revisions.items() if to == commit != name))
            used_s = max(changed_s, note.used_s) if n == 0 else changed_s  # an earlier version noted no commit
            found.append(CachedRevision(note.repo, commit, used_s, files, names, commit not in own))
        for one in found:
            left = {blob: size for blob, size in left.items() if blob not in one.files}
        if left or not found:
            found.append(CachedRevision(note.repo, "", note.used_s, left))
        return found

    def note_use(self, repo: str, now_s: float, commit: str = "") -> None:
        """A process waits for it, or uses this commit of it.

        Raises:
            OSError: it cannot be noted.
        """
        if commit:
            with suppress(FileNotFoundError):
                os.utime(self.path / folder_name(repo) / "snapshots" / commit, (now_s, now_s))
            return
        with self.changing():
            self._write(replace(self._note(repo), used_s=now_s))

    def note_begun(self, repo: str, commit: str) -> None:
        """Its snapshot is about to be made: it is Gpuward's, also if nothing more is noted of it."""
        with (self.path / _OWN / f"{folder_name(repo)}.commits").open("a", encoding="ascii") as file:
            file.write(commit + "\n")

    def note_fetched(
        self, repo: str, revision: str, commit: str, token: str, *, is_public: bool, name: str = ""
    ) -> None:
        """It is there, and this token may read it. `name`: a branch or tag that named this commit at some time."""
        with self.changing():
            note = self._note(repo)
            readers = tuple(dict.fromkeys((*note.readers, digest(token))))[-_MOST_READERS:]
            named = {name: commit} if name else {}
            revisions = {**named, **note.revisions, revision: commit, commit: commit}
            self._write(replace(note, is_public=is_public, readers=readers, revisions=revisions))

    def note_refused(self, repo: str, token: str) -> None:
        """The hub lets this token read it no longer."""
        with self.changing():
            note = self._note(repo)
            readers = tuple(one for one in note.readers if one != digest(token))
            self._write(replace(note, is_public=False, readers=readers))

    def usable(self, repo: str, revision: str, token: str) -> str | None:
        """The commit, if it is there whole and this token could read it when the hub was last asked; else None."""
        with self.changing():
            note = self._note(repo)
            commit = note.revisions.get(revision)
            allowed = note.is_public or digest(token) in note.readers
            if not allowed or commit is None:
                return None
            return commit if (self.path / folder_name(repo) / "snapshots" / commit).is_dir() else None

    def remove(self, one: CachedRevision, in_use: Callable[[], Collection[Use]]) -> bool:
        """Removes a revision's files, but those that others of its repository share. Whether it did.

        Args:
            one: the revision.
            in_use: what any agent uses, read again while no agent can begin to use it.
        """
        try:
            with file_lock(lock_path(self.path, one.repo), 0.0):
                if not self._detach(one, in_use):
                    return False
                self._sweep(one)
                return True
        except LockedError:
            return False  # it is being fetched

    def _detach(self, one: CachedRevision, in_use: Callable[[], Collection[Use]]) -> bool:
        """After this no agent takes it for whole."""
        folder = self.path / folder_name(one.repo)
        with self.changing():
            if is_used(one, in_use()):
                return False
            if one.commit:
                shutil.rmtree(folder / "snapshots" / one.commit, ignore_errors=True)
                for name in one.names:
                    _remove_name(folder / "refs" / name, one.commit)
                note = self._note(one.repo)
                revisions = {name: commit for name, commit in note.revisions.items() if commit != one.commit}
                self._write(replace(note, revisions=revisions))
            return True

    def _sweep(self, one: CachedRevision) -> None:
        """Removes its files; the whole repository where nothing else is left."""
        folder = self.path / folder_name(one.repo)
        kept = {blob for commit, _ in _snapshots(folder) for blob in _blobs_of(folder / "snapshots" / commit)}
        for blob in one.files.keys() - kept:
            (folder / "blobs" / blob).unlink(missing_ok=True)
        if _snapshots(folder) or _sizes(folder / "blobs"):
            return
        shutil.rmtree(folder, ignore_errors=True)
        with self.changing():
            for path in (self._note_path(one.repo), self._note_path(one.repo).with_name(f"{folder.name}.commits")):
                path.unlink(missing_ok=True)

    def free_bytes(self) -> int:
        """Of the disk."""
        return shutil.disk_usage(self.path).free

    def _own_commits(self, note: _Note) -> set[str]:
        begun = ""
        with suppress(OSError):
            begun = (self.path / _OWN / f"{folder_name(note.repo)}.commits").read_text(encoding="ascii")
        return {*note.revisions.values(), *begun.split()}

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


def _sizes(blobs: Path) -> dict[str, int]:
    """Bytes of each blob and part on the disk."""
    found = {}
    with suppress(OSError):
        for entry in os.scandir(blobs):
            with suppress(OSError):
                found[entry.name] = entry.stat(follow_symlinks=False).st_size
    return found


def _snapshots(folder: Path) -> list[tuple[str, float]]:
    """The commits of which there is a snapshot, each with its time, the latest first."""
    found = []
    with suppress(OSError):
        for entry in os.scandir(folder / "snapshots"):
            with suppress(OSError):
                found.append((entry.name, entry.stat(follow_symlinks=False).st_mtime))
    return sorted(found, key=lambda one: -one[1])


def _blobs_of(snapshot: Path) -> set[str]:
    """The names of the blobs that its links point to."""
    found = set()
    for place, folders, files in os.walk(snapshot):
        for name in (*folders, *files):
            with suppress(OSError):
                found.add(os.readlink(Path(place) / name).rpartition("/")[2])  # noqa: PTH115 - the text as it is
    return found


def _remove_name(path: Path, commit: str) -> None:
    """Removes a branch or tag that names this commit."""
    with suppress(OSError, ValueError):
        if path.read_text(encoding="ascii").strip() == commit:
            path.unlink()
