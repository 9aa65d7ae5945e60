"""Makes ready what the server needs: folders that its account can use, binaries that it can run, a cluster."""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog

from controller.store.embedded.accounts import Account
from controller.store.embedded.errors import EmbeddedPostgresError
from controller.store.embedded.installation import Installation, copy_into, installed
from controller.store.embedded.layout import DATABASE, ROLE, Layout
from controller.store.embedded.processes import first_blocked, run_program

_log = structlog.get_logger(__name__)

T = TypeVar("T")

_INITDB_DEADLINE_S = 60.0


async def prepare_folders(layout: Layout, account: Account) -> None:
    """Makes the folders and sees to it that the account reaches them.

    Outside the data folder no permission is changed.

    Raises:
        EmbeddedPostgresError: a folder above the data folder is closed to the account.
        OSError: a folder cannot be made.
    """
    if not layout.data_dir.exists():
        layout.data_dir.mkdir(parents=True)
        layout.data_dir.chmod(0o700)
    _make_folder(layout.home, 0o700 if account.is_ours else 0o711)
    _make_folder(layout.config, 0o700 if account.is_ours else 0o755)
    for folder in (layout.sockets, layout.logs):
        _make_folder(folder, 0o700, account)
    if account.is_ours:
        return
    blocked = await first_blocked(account, [layout.home])
    if blocked == layout.data_dir:
        # Ours to change, and no more than passing through: it lets nobody list the folder or read a closed file.
        layout.data_dir.chmod(layout.data_dir.stat().st_mode & 0o7777 | 0o001)
        blocked = await first_blocked(account, [layout.home])
    if blocked is not None:
        raise EmbeddedPostgresError(
            f"PostgreSQL runs as {account.name!r}, which cannot reach the data folder {layout.data_dir} because "
            f"{blocked} is closed to it: choose another folder by --data-dir (such as /var/lib/gpuward), or open "
            f"the way yourself (chmod o+x {blocked})",
        )


async def reachable_binaries(layout: Layout, account: Account) -> Installation:
    """The wheel's binaries, or a copy of them in the data folder where the account cannot reach the wheel."""
    binaries = installed()
    if account.is_ours or await first_blocked(account, binaries.must_reach()) is None:
        return binaries
    return await _to_its_end(lambda: copy_into(layout.home, binaries))


async def make_cluster(layout: Layout, account: Account, binaries: Installation) -> None:
    """Makes the cluster with our role and database in it; it appears under its name only when it is whole.

    Raises:
        EmbeddedPostgresError: PostgreSQL's own programs refuse.
    """
    draft = layout.draft_cluster
    if draft.exists():
        await _to_its_end(lambda: shutil.rmtree(draft))
    _make_folder(draft, 0o700, account)
    # The built-in locale sorts the same on every machine: a system's own may change under the indexes.
    locale = ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    argv = [str(binaries.initdb), "--pgdata", str(draft), "--username=postgres", "--auth=peer", *locale]
    await run_program(account, argv, timeout_s=_INITDB_DEADLINE_S)
    # Stand-alone mode takes one statement a line. The role may make databases, for restoring and testing.
    statements = f"CREATE ROLE {ROLE} LOGIN CREATEDB\nCREATE DATABASE {DATABASE} OWNER {ROLE}\n"
    argv = [str(binaries.postgres), "--single", "-D", str(draft), "postgres"]
    output = await run_program(account, argv, stdin=statements.encode(), timeout_s=_INITDB_DEADLINE_S)
    if "ERROR:" in output or "FATAL:" in output:
        raise EmbeddedPostgresError(f"the role and the database could not be made: {output[-2000:]}")
    draft.rename(layout.cluster)
    _sync_folder(layout.home)
    _log.info("embedded_postgres_cluster_made", folder=str(layout.cluster), account=account.name)


async def _to_its_end(work: Callable[[], T]) -> T:
    # A thread cannot be cancelled. Were it left behind, it would still write when the lock is free and the next
    # start prepares the same folders. The work is local copying and deleting: a second at most.
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        running.exception()  # seen, and of no interest to one who has given up
        raise


def _make_folder(folder: Path, mode: int, owner: Account | None = None) -> None:
    folder.mkdir(exist_ok=True)
    folder.chmod(mode)
    if owner is not None and not owner.is_ours:
        os.chown(folder, owner.uid, owner.gid)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
