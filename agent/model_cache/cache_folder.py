"""The cache's folder: its models, the tokens that may read them, and the last use of each. Blocks.

The layout is the hub library's, so that servers find the models. Gpuward's notes are in `.gpuward`; only revisions that
it fetched are ever removed. Another account may write the models' folders, so no link is followed. Agents of one host
may share the folder: a lock is held for each change of notes, and a lock of a repository for its fetch or removal.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from agent.decide.eviction import CachedRevision, Use, is_used
from agent.model_cache.beneath import OpenFolder, PlaceBeneath, is_beneath
from agent.model_cache.file_lock import LockBeneath, LockedError, file_lock
from agent.model_cache.hub_layout import blob_sizes, blobs_of, folder_name, remove_name, snapshots
from schemas.hub import is_commit

_OWN: Final = ".gpuward"
_NOTE: Final = ".json"
_MOST_READERS: Final = 1_000
_NOTES_LIMIT_S: Final = 10.0  # the lock is held for milliseconds


def digest(token: str) -> str:
    # Notes hold digests of tokens, never tokens.
    return hashlib.sha256(token.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _Note:
    repo: str  # org/name
    used_s: float = 0.0  # seconds since 1970
    is_public: bool = False  # readable without a token
    readers: tuple[str, ...] = ()  # digests of tokens that could read it
    # requested names with the commit of each, once fetched
    revisions: Mapping[str, str] = field(default_factory=dict)


class CacheFolder:
    """All models in one folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._own = PlaceBeneath(path, _OWN)

    @property
    def marks(self) -> PlaceBeneath:
        """The folder with agents' marks of use."""
        return PlaceBeneath(self.path, f"{_OWN}/agents")

    @property
    def room_lock(self) -> LockBeneath:
        """Locked while an agent evicts models."""
        return LockBeneath(self._own, "room.lock")

    def model_lock(self, repo: str) -> LockBeneath:
        """Locked while a repository is fetched or removed."""
        return LockBeneath(self._own, f"{folder_name(repo)}.lock")

    def prepare(self) -> None:
        """Creates the folder, readable by all accounts of the host."""
        self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._own.open(make=0o700).close()

    def open_model(self, repo: str) -> OpenFolder:
        """Opens the folder of a repository, created if it is missing. Raises OSError, also for a link."""
        return PlaceBeneath(self.path, folder_name(repo)).open(make=0o755)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Holds the lock of all notes and marks. Raises OSError."""
        with file_lock(LockBeneath(self._own, "notes.lock"), _NOTES_LIMIT_S):
            yield

    def revisions(self) -> list[CachedRevision]:
        """All revisions, including parts of unfinished fetches."""
        revisions: list[CachedRevision] = []
        with suppress(OSError), self._own.open() as own:
            for name in own.entries():
                note = _read(own, name) if name.endswith(_NOTE) else None
                if note is not None:
                    revisions += self._revisions_of(note, _started_commits(own, note.repo))
        return sorted(revisions, key=lambda revision: (revision.repo, -revision.used_s))

    def _revisions_of(self, note: _Note, started: Collection[str]) -> list[CachedRevision]:
        revisions: list[CachedRevision] = []
        left: dict[str, int] = {}
        own = {*note.revisions.values(), *started}
        with suppress(OSError), PlaceBeneath(self.path, folder_name(note.repo)).open() as model:
            left = blob_sizes(model)
            for n, (commit, changed_s) in enumerate(snapshots(model)):
                files = {blob: left[blob] for blob in blobs_of(model, commit) if blob in left}
                names = tuple(sorted(name for name, to in note.revisions.items() if to == commit != name))
                used_s = max(changed_s, note.used_s) if n == 0 else changed_s  # an earlier version noted no commit
                revisions.append(CachedRevision(note.repo, commit, used_s, files, names, commit not in own))
        for revision in revisions:
            left = {blob: size for blob, size in left.items() if blob not in revision.files}
        if left or not revisions:
            revisions.append(CachedRevision(note.repo, "", note.used_s, left))
        return revisions

    def note_use(self, repo: str, now_s: float, commit: str = "") -> None:
        """A process waits for a model, or uses this commit. Raises OSError."""
        if commit:
            with suppress(FileNotFoundError), PlaceBeneath(self.path, folder_name(repo)).open() as model:
                model.touch(f"snapshots/{commit}", now_s)
            return
        with self.changing():
            self._write(replace(self._note(repo), used_s=now_s))

    def note_started(self, repo: str, commit: str) -> None:
        """Marks a snapshot as Gpuward's before it is created, in case its fetch fails. Raises OSError."""
        with self.changing(), self._own.open() as own:
            commits = [*dict.fromkeys((*_started_commits(own, repo), commit))]
            own.replace_text(_commits_name(repo), "\n".join(commits) + "\n")

    def note_fetched(
        self, repo: str, revision: str, commit: str, token: str, *, is_public: bool, name: str = ""
    ) -> None:
        """The commit is complete, and this token may read it. `name`: a branch or tag that named it at some time."""
        with self.changing():
            note = self._note(repo)
            readers = tuple(dict.fromkeys((*note.readers, digest(token))))[-_MOST_READERS:]
            named = {name: commit} if name else {}
            revisions = {**named, **note.revisions, revision: commit, commit: commit}
            self._write(replace(note, is_public=is_public, readers=readers, revisions=revisions))

    def note_refused(self, repo: str, token: str) -> None:
        """The hub no longer lets this token read the model."""
        with self.changing():
            note = self._note(repo)
            readers = tuple(reader for reader in note.readers if reader != digest(token))
            self._write(replace(note, is_public=False, readers=readers))

    def usable(self, repo: str, revision: str, token: str) -> str | None:
        """The commit, if it is complete and the hub's last answer let this token read it; else None."""
        with self.changing():
            note = self._note(repo)
            commit = note.revisions.get(revision)
            allowed = note.is_public or digest(token) in note.readers
            if not allowed or commit is None:
                return None
            with suppress(OSError), PlaceBeneath(self.path, folder_name(repo)).open() as model:
                model.folder(f"snapshots/{commit}").close()
                return commit
            return None

    def remove(self, revision: CachedRevision, in_use: Callable[[], Collection[Use]]) -> bool:
        """Removes a revision's files unless it is in use or fetched; shared files stay. Returns whether it did.

        `in_use` returns the uses of all agents; it is called while no agent can start a use. Raises OSError, also where
        a link is in the way.
        """
        try:
            with file_lock(self.model_lock(revision.repo), 0.0):
                if not self._detach(revision, in_use):
                    return False
                self._sweep(revision)
                return True
        except LockedError:
            return False  # it is being fetched

    def _detach(self, revision: CachedRevision, in_use: Callable[[], Collection[Use]]) -> bool:
        """Removes the snapshot and its names, so that no agent takes the revision for complete."""
        with self.changing():
            if is_used(revision, in_use()):
                return False
            if revision.commit:
                with suppress(FileNotFoundError), PlaceBeneath(self.path, folder_name(revision.repo)).open() as model:
                    model.remove_tree(f"snapshots/{revision.commit}")
                    for name in revision.names:
                        remove_name(model, name, revision.commit)
                note = self._note(revision.repo)
                revisions = {name: commit for name, commit in note.revisions.items() if commit != revision.commit}
                self._write(replace(note, revisions=revisions))
            return True

    def _sweep(self, revision: CachedRevision) -> None:
        """Removes its files, and the repository if it becomes empty."""
        with OpenFolder.at(self.path) as cache:
            with suppress(FileNotFoundError), cache.folder(folder_name(revision.repo)) as model:
                kept = {blob for commit, _ in snapshots(model) for blob in blobs_of(model, commit)}
                for blob in revision.files.keys() - kept:
                    model.unlink(f"blobs/{blob}")
                if snapshots(model) or blob_sizes(model):
                    return
            cache.remove_tree(folder_name(revision.repo))
        with self.changing(), self._own.open() as own:
            for name in (_note_name(revision.repo), _commits_name(revision.repo)):
                own.unlink(name)

    def free_bytes(self) -> int:
        return shutil.disk_usage(self.path).free

    def _note(self, repo: str) -> _Note:
        with self._own.open() as own:
            return _read(own, _note_name(repo)) or _Note(repo)

    def _write(self, note: _Note) -> None:
        with self._own.open() as own:
            own.replace_text(_note_name(note.repo), json.dumps(asdict(note)))


def _note_name(repo: str) -> str:
    return folder_name(repo) + _NOTE


def _commits_name(repo: str) -> str:
    return f"{folder_name(repo)}.commits"


def _started_commits(own: OpenFolder, repo: str) -> list[str]:
    with suppress(OSError, ValueError):
        return [commit for commit in own.read_text(_commits_name(repo)).split() if is_commit(commit)]
    return []


def _read(own: OpenFolder, name: str) -> _Note | None:
    """None if unreadable: the next use writes it again."""
    try:
        known: dict[str, Any] = json.loads(own.read_text(name))
        revisions = {
            ref: commit for ref, commit in known["revisions"].items() if is_beneath(ref) and is_commit(str(commit))
        }
        note = _Note(**{**known, "readers": tuple(known["readers"]), "revisions": revisions})
        return note if _note_name(note.repo) == name else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
