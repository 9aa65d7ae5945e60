"""Chooses the operating-system account that PostgreSQL runs as.

PostgreSQL refuses root, so a controller that runs as root uses an unprivileged account for it; any other controller
uses its own.
"""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from controller.store.embedded.installation import EmbeddedPostgresError

CANDIDATES = ("gpuward", "postgres", "nobody")
"""Tried in this order if none is configured and no cluster exists yet."""


@dataclass(frozen=True)
class Account:
    """An operating-system account."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]

    @property
    def is_ours(self) -> bool:
        """Whether this process runs under it, so that no switch and no change of owner is needed."""
        return self.uid == os.geteuid()


def current_account() -> Account:
    """Raises EmbeddedPostgresError if the user id has no name, which PostgreSQL needs to start and to know its user."""
    uid = os.geteuid()
    try:
        return _account(pwd.getpwuid(uid))
    except KeyError as error:
        raise EmbeddedPostgresError(
            f"user id {uid} has no entry in the system's user list, and PostgreSQL needs one: add the user, "
            "or use a server of your own through GPUWARD_DATABASE_URL",
        ) from error


def choose_account(cluster: Path, wanted: str | None) -> Account:
    """Chooses the account for the cluster: its owner if it exists, else `wanted`, else the first usable candidate.

    Args:
        cluster: PostgreSQL's own folder, which may not exist yet.
        wanted: the configured account's name, or None.

    Raises:
        EmbeddedPostgresError: the choices conflict, or no account is usable.
    """
    ours = current_account()
    chosen = ours if ours.uid != 0 and wanted in (None, ours.name) else _unprivileged(ours, wanted)
    if not cluster.exists():
        return chosen
    owner = cluster.stat().st_uid
    if owner == chosen.uid:
        return chosen
    if ours.uid == 0 and wanted is None and owner != 0:
        return _by_uid(owner, cluster)
    raise EmbeddedPostgresError(
        f"the database in {cluster} belongs to {name_of(owner)}, not to {chosen.name}: start as "
        f"{'that account' if ours.uid else 'root without choosing an account'}, or choose another folder by --data-dir",
    )


def _unprivileged(ours: Account, wanted: str | None) -> Account:
    if ours.uid != 0:
        raise EmbeddedPostgresError(
            f"only root can run the database as {wanted!r}; this is {ours.name!r}: leave the database account unset",
        )
    for name in (wanted,) if wanted is not None else CANDIDATES:
        try:
            account = _account(pwd.getpwnam(name))
        except KeyError:
            continue
        if account.uid != 0:
            return account
    tried = repr(wanted) if wanted is not None else ", ".join(CANDIDATES)
    raise EmbeddedPostgresError(
        f"PostgreSQL refuses to run as root, and none of these accounts exists: {tried}; "
        "create one (useradd --system gpuward), or use a server of your own through GPUWARD_DATABASE_URL",
    )


def _by_uid(uid: int, cluster: Path) -> Account:
    try:
        return _account(pwd.getpwuid(uid))
    except KeyError as error:
        raise EmbeddedPostgresError(
            f"the database in {cluster} belongs to user id {uid}, which has no account on this machine: "
            "create it again, or choose another folder by --data-dir",
        ) from error


def name_of(uid: int) -> str:
    """The name of an account; without one, its user id in words."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user id {uid}"


def _account(entry: pwd.struct_passwd) -> Account:
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return Account(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid, groups=groups)
