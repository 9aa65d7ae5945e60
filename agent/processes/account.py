"""An account of the host, and the folders that it needs."""

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Account:
    """An account of the host, also in containers."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()  # supplementary

    def take(self, folder: Path) -> None:
        """Makes this account the owner of a folder and its content, unless it owns the folder. Blocks for a walk.

        Links are not followed, and a file with a second name elsewhere keeps its owner. Raises OSError.
        """
        owned = folder.lstat()
        if (owned.st_uid, owned.st_gid) == (self.uid, self.gid):
            return
        for _, folders, files, place in os.fwalk(folder):
            for name in (*folders, *files):
                status = os.stat(name, dir_fd=place, follow_symlinks=False)
                if status.st_nlink == 1 or stat.S_ISDIR(status.st_mode):
                    os.chown(name, self.uid, self.gid, dir_fd=place, follow_symlinks=False)
        os.chown(folder, self.uid, self.gid, follow_symlinks=False)  # last, as the mark of completion

    def enters(self, status: os.stat_result) -> bool:
        """Whether it may enter a folder, or run a program, with this status."""
        return self._may(status, stat.S_IXOTH)

    def reads(self, status: os.stat_result) -> bool:
        """Whether it may read a file, or list a folder, with this status."""
        return self._may(status, stat.S_IROTH)

    def _may(self, status: os.stat_result, right: int) -> bool:
        if status.st_uid == self.uid:
            return bool(status.st_mode & right << 6)
        if status.st_gid in (self.gid, *self.groups):
            return bool(status.st_mode & right << 3)
        return bool(status.st_mode & right)

    def stopped_at(self, path: Path) -> Path | None:
        """The first folder on the way to `path`, or `path` itself, that it may not enter; None if it may enter all."""
        for place in (*reversed(path.parents), path):
            try:
                if not self.enters(place.stat()):
                    return place
            except OSError:
                return None  # the agent creates missing folders
        return None


def own_account() -> Account:
    own = os.getegid()
    return Account(os.geteuid(), own, tuple(group for group in os.getgroups() if group != own))


def container_user(setting: str) -> Account:
    """Parses `UID[:GID]`. Without a gid: the user's own group if known on this host, else the gid equal to the uid."""
    uid, _, gid = setting.partition(":")
    return Account(int(uid), int(gid) if gid else _group_of(int(uid)))


def _group_of(uid: int) -> int:
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid
