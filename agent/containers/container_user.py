"""As which user of the host containers run, and the folders that this user needs."""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ContainerUser:
    """One user.

    Attributes:
        uid: of the host, and in the container.
        gid: its group.
        groups: its other groups.
    """

    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    def take(self, folder: Path) -> None:
        """Makes a folder this user's, with all that is in it, unless it is already. Blocks for a walk.

        Raises:
            OSError: the agent may not do that.
        """
        found = folder.lstat()
        if (found.st_uid, found.st_gid) == (self.uid, self.gid):
            return
        for place, folders, files in os.walk(folder):
            for name in (*folders, *files):
                os.lchown(Path(place) / name, self.uid, self.gid)
        os.lchown(folder, self.uid, self.gid)  # last, as the mark that all is done


def container_user(setting: str | None) -> ContainerUser:
    """The user that the setting names; None: the agent's own, with its groups.

    Without a group the user's own group counts where this host knows it, else the one of the same number.
    """
    if setting is None:
        groups = tuple(group for group in os.getgroups() if group != os.getegid())
        return ContainerUser(os.geteuid(), os.getegid(), groups)
    uid, _, gid = setting.partition(":")
    return ContainerUser(int(uid), int(gid) if gid else _group_of(int(uid)))


def _group_of(uid: int) -> int:
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid
