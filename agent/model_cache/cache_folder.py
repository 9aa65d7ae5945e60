"""The cache's folder: which models it holds, which tokens may read them, when each was last used. Blocks.

The layout is the hub library's, so servers find the models. What Gpuward knows of each is kept in `.gpuward` there;
only revisions that it fetched are ever removed. Another account may write the models' folders, so no link is followed.
Agents of one host may share the folder: a lock is held around each change of what is noted, and another one, of a
repository, around its fetch and its removal.
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
_NOTES_LIMIT_S: Final = 10.0  # such a lock is held for milliseconds


def digest(token: str) -> str:
    """By which a token is remembered."""
    return hashlib.sha256(token.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _Note:
    """What is noted of one repository."""

    repo: str  # org/name
    used_s: float = 0.0  # seconds since 1970
    is_public: bool = False  # readable without a token
    readers: tuple[str, ...] = ()  # digests of tokens that could read it
    # names that were asked for, with the commit of each, once it was fetched
    revisions: Mapping[str, str] = field(default_factory=dict)


class CacheFolder:
    """All models in one folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._own = PlaceBeneath(path, _OWN)

    @property
    def marks(self) -> PlaceBeneath:
        """The folder in which agents write what they use."""
        return PlaceBeneath(self.path, f"{_OWN}/agents")

    @property
    def room_lock(self) -> LockBeneath:
        """The file that is locked while an agent makes room."""
        return LockBeneath(self._own, "room.lock")

    def model_lock(self, repo: str) -> LockBeneath:
        """The file that is locked while a repository is fetched or removed."""
        return LockBeneath(self._own, f"{folder_name(repo)}.lock")

    def prepare(self) -> None:
        """Makes the folder, readable by all accounts of the host."""
        self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._own.open(make=0o700).close()

    def open_model(self, repo: str) -> OpenFolder:
        """Opens the folder of a repository, which is made if it is missing; the caller closes it.

        Raises:
            OSError: it cannot be opened, or is a link.
        """
        return PlaceBeneath(self.path, folder_name(repo)).open(make=0o755)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Holds the lock of what is noted of all models and their use. Raises OSError if it cannot be had."""
        with file_lock(LockBeneath(self._own, "notes.lock"), _NOTES_LIMIT_S):
            yield

    def revisions(self) -> list[CachedRevision]:
        """What is there, with parts."""
        found: list[CachedRevision] = []
        with suppress(OSError), self._own.open() as own:
            for name in own.entries():
                note = _read(own, name) if name.endswith(_NOTE) else None
                if note is not None:
                    found += self._revisions_of(note, _begun(own, note.repo))
        return sorted(found, key=lambda one: (one.repo, -one.used_s))

    def _revisions_of(self, note: _Note, begun: Collection[str]) -> list[CachedRevision]:
        found: list[CachedRevision] = []
        left: dict[str, int] = {}
        own = {*note.revisions.values(), *begun}
        with suppress(OSError), PlaceBeneath(self.path, folder_name(note.repo)).open() as model:
            left = blob_sizes(model)
            for n, (commit, changed_s) in enumerate(snapshots(model)):
                files = {blob: left[blob] for blob in blobs_of(model, commit) if blob in left}
                names = tuple(sorted(name for name, to in note.revisions.items() if to == commit != name))
                used_s = max(changed_s, note.used_s) if n == 0 else changed_s  # an earlier version noted no commit
                found.append(CachedRevision(note.repo, commit, used_s, files, names, commit not in own))
        for one in found:
            left = {blob: size for blob, size in left.items() if blob not in one.files}
        if left or not found:
            found.append(CachedRevision(note.repo, "", note.used_s, left))
        return found

    def note_use(self, repo: str, now_s: float, commit: str = "") -> None:
        """A process waits for it, or uses this commit of it. Raises OSError if it cannot be noted."""
        if commit:
            with suppress(FileNotFoundError), PlaceBeneath(self.path, folder_name(repo)).open() as model:
                model.touch(f"snapshots/{commit}", now_s)
            return
        with self.changing():
            self._write(replace(self._note(repo), used_s=now_s))

    def note_begun(self, repo: str, commit: str) -> None:
        """Its snapshot is about to be made: it is Gpuward's, also if nothing more is noted of it.

        Raises:
            OSError: it cannot be noted.
        """
        with self.changing(), self._own.open() as own:
            commits = [*dict.fromkeys((*_begun(own, repo), commit))]
            own.replace_text(_begun_name(repo), "\n".join(commits) + "\n")

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
            with suppress(OSError), PlaceBeneath(self.path, folder_name(repo)).open() as model:
                model.folder(f"snapshots/{commit}").close()
                return commit
            return None

    def remove(self, one: CachedRevision, in_use: Callable[[], Collection[Use]]) -> bool:
        """Removes a revision's files, but those that others of its repository share. Whether it did.

        Args:
            one: the revision.
            in_use: what any agent uses, read again while no agent can begin to use it.

        Raises:
            OSError: nothing may be removed there, or a link is in the way.
        """
        try:
            with file_lock(self.model_lock(one.repo), 0.0):
                if not self._detach(one, in_use):
                    return False
                self._sweep(one)
                return True
        except LockedError:
            return False  # it is being fetched

    def _detach(self, one: CachedRevision, in_use: Callable[[], Collection[Use]]) -> bool:
        """After this no agent takes it for whole."""
        with self.changing():
            if is_used(one, in_use()):
                return False
            if one.commit:
                with suppress(FileNotFoundError), PlaceBeneath(self.path, folder_name(one.repo)).open() as model:
                    model.remove_tree(f"snapshots/{one.commit}")
                    for name in one.names:
                        remove_name(model, name, one.commit)
                note = self._note(one.repo)
                revisions = {name: commit for name, commit in note.revisions.items() if commit != one.commit}
                self._write(replace(note, revisions=revisions))
            return True

    def _sweep(self, one: CachedRevision) -> None:
        """Removes its files; the whole repository where nothing else is left."""
        with OpenFolder.at(self.path) as cache:
            with suppress(FileNotFoundError), cache.folder(folder_name(one.repo)) as model:
                kept = {blob for commit, _ in snapshots(model) for blob in blobs_of(model, commit)}
                for blob in one.files.keys() - kept:
                    model.unlink(f"blobs/{blob}")
                if snapshots(model) or blob_sizes(model):
                    return
            cache.remove_tree(folder_name(one.repo))
        with self.changing(), self._own.open() as own:
            for name in (_note_name(one.repo), _begun_name(one.repo)):
                own.unlink(name)

    def free_bytes(self) -> int:
        """Of the disk."""
        return shutil.disk_usage(self.path).free

    def _note(self, repo: str) -> _Note:
        with self._own.open() as own:
            return _read(own, _note_name(repo)) or _Note(repo)

    def _write(self, note: _Note) -> None:
        with self._own.open() as own:
            own.replace_text(_note_name(note.repo), json.dumps(asdict(note)))


def _note_name(repo: str) -> str:
    return folder_name(repo) + _NOTE


def _begun_name(repo: str) -> str:
    return f"{folder_name(repo)}.commits"


def _begun(own: OpenFolder, repo: str) -> list[str]:
    """The commits of which a snapshot was started."""
    with suppress(OSError, ValueError):
        return [one for one in own.read_text(_begun_name(repo)).split() if is_commit(one)]
    return []


def _read(own: OpenFolder, name: str) -> _Note | None:
    """None: it cannot be read; it is written again at the next use."""
    try:
        known: dict[str, Any] = json.loads(own.read_text(name))
        revisions = {
            one: commit for one, commit in known["revisions"].items() if is_beneath(one) and is_commit(str(commit))
        }
        note = _Note(**{**known, "readers": tuple(known["readers"]), "revisions": revisions})
        return note if _note_name(note.repo) == name else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
