"""As which user of the host containers run."""

import pwd

from agent.processes.account import Account


def container_user(setting: str) -> Account:
    """The user that the setting names.

    Without a group the user's own group counts where this host knows it, else the one of the same number.
    """
    uid, _, gid = setting.partition(":")
    return Account(int(uid), int(gid) if gid else _group_of(int(uid)))


def _group_of(uid: int) -> int:
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid
