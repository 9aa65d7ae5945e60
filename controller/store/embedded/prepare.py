"""Prepares what the server needs: folders that its account can use, binaries that it can run, a cluster."""

import asyncio
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import structlog

from controller.store.embedded.accounts import Account
from controller.store.embedded.installation import EmbeddedPostgresError, Installation, copy_into, installed
from controller.store.embedded.layout import DATABASE, PORT, ROLE, Layout
from controller.store.embedded.processes import first_blocked, run_program

_log = structlog.get_logger(__name__)
T = TypeVar("T")
_INITDB_DEADLINE_S = 60.0
_PAGE_BYTES = 8192
_SHARED_BUFFERS_BYTES = 128 * 1024 * 1024


async def prepare_folders(layout: Layout, account: Account) -> None:
    """Creates the folders, and makes sure that the account can reach them.

    Changes no permission outside the data folder.

    Raises:
        EmbeddedPostgresError: the account cannot enter a folder above the data folder.
        OSError: a folder cannot be created.
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
        # Our own folder. Search permission only: it allows neither listing the folder nor reading its files.
        layout.data_dir.chmod(layout.data_dir.stat().st_mode & 0o7777 | 0o001)
        blocked = await first_blocked(account, [layout.home])
    if blocked is not None:
        raise EmbeddedPostgresError(
            f"PostgreSQL runs as {account.name!r}, which cannot reach the data folder {layout.data_dir} because "
            f"{blocked} is closed to it: choose another folder by --data-dir (such as /var/lib/gpuward), or open "
            f"the way yourself (chmod o+x {blocked})",
        )


async def reachable_binaries(layout: Layout, account: Account) -> Installation:
    """The wheel's binaries, or a copy in the data folder if the account cannot reach the wheel."""
    binaries = installed()
    if account.is_ours or await first_blocked(account, binaries.must_reach()) is None:
        return binaries
    return await _uncancelled(lambda: copy_into(layout.home, binaries))


async def make_cluster(layout: Layout, account: Account, binaries: Installation) -> None:
    """Creates the cluster with our role and database; it gets its name only once it is complete.

    Raises:
        EmbeddedPostgresError: one of PostgreSQL's programs failed.
    """
    draft = layout.draft_cluster
    if draft.exists():
        await _uncancelled(lambda: shutil.rmtree(draft))
    _make_folder(draft, 0o700, account)
    # The built-in locale sorts the same on every machine; a system's locale may change and corrupt indexes.
    locale = ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    argv = [str(binaries.initdb), "--pgdata", str(draft), "--username=postgres", "--auth=peer", *locale]
    await run_program(account, argv, timeout_s=_INITDB_DEADLINE_S)
    # Stand-alone mode takes one statement per line. The role may create databases, for restores and tests.
    statements = f"CREATE ROLE {ROLE} LOGIN CREATEDB\nCREATE DATABASE {DATABASE} OWNER {ROLE}\n"
    argv = [str(binaries.postgres), "--single", "-D", str(draft), "postgres"]
    output = await run_program(account, argv, stdin=statements.encode(), timeout_s=_INITDB_DEADLINE_S)
    if "ERROR:" in output or "FATAL:" in output:
        raise EmbeddedPostgresError(f"the role and the database could not be created: {output[-2000:]}")
    draft.rename(layout.cluster)
    _sync_folder(layout.home)
    _log.info("embedded PostgreSQL cluster created", folder=str(layout.cluster), account=account.name)


async def _uncancelled(work: Callable[[], T]) -> T:
    # A thread cannot be cancelled. If it were left running, it would still write when the lock is free and the next
    # start prepares the same folders. The work is local copying and deleting: at most a second.
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        running.exception()  # retrieved, so that it is not logged; the caller was cancelled
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


def write_config(layout: Layout, readers: Iterable[Account], extra_settings: Mapping[str, str]) -> None:
    """Writes the server's three configuration files.

    Args:
        layout: where to write them.
        readers: accounts that may connect, all as the same database role.
        extra_settings: PostgreSQL parameters that override these.
    """
    settings = _settings(layout) | dict(extra_settings)
    names = dict.fromkeys(account.name for account in readers)
    files = {
        "postgresql.conf": "".join(f"{name} = {_quoted(value)}\n" for name, value in settings.items()),
        "pg_hba.conf": "local all all peer map=gpuward\n",
        "pg_ident.conf": "".join(f'gpuward "{name}" {ROLE}\n' for name in names),
    }
    for name, text in files.items():
        path = layout.config / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o644)


def _settings(layout: Layout) -> dict[str, str]:
    return {
        "data_directory": str(layout.cluster),
        "hba_file": str(layout.config / "pg_hba.conf"),
        "cluster_name": layout.cluster_name,
        "ident_file": str(layout.config / "pg_ident.conf"),
        # Reachable by the socket alone, for its folder's owner and root alone.
        "listen_addresses": "",
        "port": str(PORT),
        "unix_socket_directories": _quoted_list_item(str(layout.sockets)),
        "unix_socket_permissions": "0700",
        # Durable: commits survive any crash, including the machine's.
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        # It shares the controller's host: modest memory, and no unneeded processes.
        "max_connections": "100",
        "shared_buffers": str(_SHARED_BUFFERS_BYTES // _PAGE_BYTES),
        "max_wal_size": "512MB",
        "io_method": "sync",
        "max_logical_replication_workers": "0",
        # One file for each weekday, truncated after a week.
        "logging_collector": "on",
        "log_directory": str(layout.logs),
        "log_filename": "postgres-%a.log",
        "log_rotation_age": "1d",
        "log_rotation_size": "0",
        "log_truncate_on_rotation": "on",
        "log_file_mode": "0600",
        "log_line_prefix": "%m [%p] %u@%d ",
        "log_checkpoints": "off",
        "timezone": "UTC",
        "log_timezone": "UTC",
    }


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def _quoted_list_item(value: str) -> str:
    # A list of folders is split at commas unless each is quoted again.
    return '"' + value.replace('"', '""') + '"'
