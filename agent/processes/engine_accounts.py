"""Allots accounts to engines: the agent's, one for all engines, or one for each instance."""

import grp
import os
import pwd
import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from agent.decide.engine_accounts import UNUSED_UIDS, EngineUser, next_uid, parse_engine_user
from agent.errors import SettingError, SpawnError
from agent.processes.account import Account
from agent.processes.folders import InstanceFolders
from agent.processes.host_locks import HostLocks
from agent.processes.privileges import missing_capabilities
from agent.processes.procfs import list_uids
from agent.state.journal import Journal

# Engines get the groups of these devices, so that they may open the devices that the agent may.
_GPU_NODES: Final = ("nvidia*", "nvidia-caps/*", "dri/*", "kfd", "infiniband/*")


def why_not_isolated(needed: Iterable[Path]) -> str:
    """Why engines cannot run as accounts of their own (`UNUSED_UIDS`); empty if they can.

    `needed`: folders and programs that they must reach.
    """
    if missing := missing_capabilities():
        return f"this process lacks {', '.join(missing)}"
    account = Account(parse_engine_user(UNUSED_UIDS).uids[0], parse_engine_user(UNUSED_UIDS).uids[0])
    stopped = next((at for path in needed if (at := account.stopped_at(path)) is not None), None)
    return "" if stopped is None else f"other accounts may not enter {stopped}"


class EngineAccounts:
    """The accounts of one agent's engines. Live processes in the journal hold their uid.

    `user` None: engines run as the agent. Raises SettingError if the account does not exist, or if the agent may not
    change accounts.
    """

    def __init__(self, user: EngineUser | None, journal: Journal, folders: InstanceFolders) -> None:
        self._journal = journal
        self._folders = folders
        self._last: int | None = None
        self._first = None if user is None else first_account(user)
        self._uids = range(0) if user is None else user.uids
        # Between the choice of a uid and the engine's start another agent of the host could choose it too, and at an
        # engine's end an agent kills all processes of its uid.
        self._locks = HostLocks("uid")
        if self._first is not None:
            folders.let_pass()
        for record in journal.live():
            if record.uid is not None and record.uid in self._uids:
                self._locks.lock(record.uid)

    @property
    def shared(self) -> Account | None:
        """The common account of all engines; None: the agent's own, or one for each instance."""
        return None if self._uids else self._first

    @property
    def any(self) -> Account | None:
        """A representative account, such as to check folders; None: engines run as the agent."""
        return self._first

    def known(self, uid: int | None) -> Account | None:
        """The account of a journalled uid; None: the agent's own."""
        first = self._first
        if uid is None or first is None or uid == first.uid:
            return None if uid is None else first
        return replace(first, uid=uid, gid=uid if first.gid == first.uid else first.gid)

    def is_of_one_instance(self, uid: int | None) -> bool:
        """Whether all processes of this uid belong to one instance."""
        return uid is not None and uid in self._uids

    def allot(self, instance: str) -> Account | None:
        """The account for an instance's start; None: the agent's own. Blocks: it reads all processes.

        Raises SpawnError if all accounts of the range are in use.
        """
        if not self._uids:
            return self._first
        live = self._journal.live()
        mine = {record.uid for record in live if record.instance == instance and record.uid in self._uids}
        if mine:
            return self.known(mine.pop())
        held = {record.uid for record in live if record.uid is not None}
        self._locks.keep(held)
        uid = self._lock_free_uid(instance, held | list_uids())
        for other in (name for name, owner in self._folders.owners().items() if owner == uid and name != instance):
            self._folders.close(other)
        self._last = uid
        return self.known(uid)

    def _lock_free_uid(self, instance: str, in_use: set[int]) -> int:
        owners = self._folders.owners()
        while (uid := next_uid(self._uids, instance, in_use=in_use, owners=owners, last=self._last)) is not None:
            if self._locks.lock(uid):
                return uid
            in_use.add(uid)
        raise SpawnError(
            f"all {len(self._uids)} accounts of the agent's setting `engine_user` are in use; make the range larger"
        )

    def close(self) -> None:
        """Releases the uids for other agents."""
        self._locks.close()


def first_account(user: EngineUser) -> Account:
    """The account, or the first of a range, with the groups that open GPUs. Raises SettingError."""
    if missing := missing_capabilities():
        raise SettingError(
            f"engine_user: this agent may not run engines as another account: it lacks {', '.join(missing)}; "
            "run it as root, or leave the setting out"
        )
    group = _group_id(user.group) if user.group else None
    gpu_groups = set(_gpu_groups(Path("/dev")))
    known = None if user.uids else _entry(user.user)
    uid = user.uids[0] if user.uids else int(user.user) if known is None else known.pw_uid
    if uid in (0, os.geteuid()):
        raise SettingError(
            "engine_user: must be an account other than root and the agent's own; to run engines as the agent, "
            "leave the setting out"
        )
    gid = group if group is not None else uid if known is None else known.pw_gid
    own = () if known is None else os.getgrouplist(known.pw_name, gid)
    return Account(uid, gid, tuple(sorted({*own, *gpu_groups} - {gid})))


def _entry(user: str) -> pwd.struct_passwd | None:
    """None for a uid without an entry."""
    try:
        return pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
    except KeyError:
        if user.isdigit():
            return None
        raise SettingError(
            f"engine_user: this host has no account {user!r}; make it with: useradd --system {user}"
        ) from None


def _group_id(group: str) -> int:
    try:
        return grp.getgrgid(int(group)).gr_gid if group.isdigit() else grp.getgrnam(group).gr_gid
    except KeyError:
        if group.isdigit():
            return int(group)
        raise SettingError(
            f"engine_user: this host has no group {group!r}; make it with: groupadd --system {group}"
        ) from None


def _gpu_groups(devices: Path) -> Iterator[int]:
    """The groups, except root's, of the device nodes of GPUs."""
    for pattern in _GPU_NODES:
        for node in devices.glob(pattern):
            try:
                status = node.stat()
            except OSError:
                continue
            if status.st_gid and stat.S_ISCHR(status.st_mode) and status.st_mode & stat.S_IRGRP:
                yield status.st_gid
