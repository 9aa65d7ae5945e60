"""A primary and its asynchronous standby, two servers of their own, with a link between them that a test cuts."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg

from controller.store.embedded import EmbeddedPostgres
from controller.store.embedded.accounts import Account, choose_account
from controller.store.embedded.layout import ROLE, Layout
from controller.store.embedded.prepare import prepare_folders, reachable_binaries
from controller.store.embedded.processes import run_program
from support.database.gate import DatabaseGate, gate_to

LIMIT_S = 60.0
# Only by a socket in a folder of our own. The embedded server's own rules let no standby in.
_RULES = "local all all trust\nlocal replication all trust\n"
_SETTINGS = {"wal_level": "replica", "fsync": "off", "synchronous_commit": "off", "max_wal_size": "128MB"}


class StreamingPair:
    """A running pair. `gate` leads clients to the primary, until `promote`; `link` leads the standby to it.

    Args:
        folder: an empty one that the database's account can enter.
    """

    def __init__(self, folder: Path) -> None:
        self._layouts = {name: Layout((folder / name).resolve()) for name in ("primary", "standby")}
        rules = folder / "rules.conf"
        rules.write_text(_RULES)
        rules.chmod(0o644)
        self._settings = {**_SETTINGS, "hba_file": str(rules)}
        self._primary = EmbeddedPostgres(folder / "primary", extra_settings=self._settings)
        self._standby: EmbeddedPostgres | None = None
        self.gate: DatabaseGate
        self.link: DatabaseGate

    @asynccontextmanager
    async def running(self) -> AsyncIterator["StreamingPair"]:
        """Both of them, and the two gates."""
        async with self._primary, gate_to(self._primary.dsn) as self.gate, gate_to(self._primary.dsn) as self.link:
            layout = self._layouts["standby"]
            account = choose_account(self._layouts["primary"].cluster, None)
            await prepare_folders(layout, account)
            await self._copy(layout, account)
            to_primary = {"primary_conninfo": f"host=127.0.0.1 port={self.link.port} user=postgres"}
            self._standby = EmbeddedPostgres(
                layout.data_dir, account=account.name, extra_settings={**self._settings, **to_primary}
            )
            async with self._standby:
                yield self

    async def _copy(self, layout: Layout, account: Account) -> None:
        """The base of the standby, as an operator makes it."""
        program = (await reachable_binaries(layout, account)).postgres.with_name("pg_basebackup")
        sockets = str(self._layouts["primary"].sockets)
        layout.cluster.mkdir(mode=0o700)
        os.chown(layout.cluster, account.uid, account.gid)
        argv = [str(program), "-D", str(layout.cluster), "-h", sockets, "-U", "postgres", "-X", "stream", "-c", "fast"]
        await run_program(account, argv, timeout_s=LIMIT_S)
        (layout.cluster / "standby.signal").touch()

    async def catch_up(self) -> None:
        """Waits until the standby has all that is committed by now."""
        at = await self._ask("primary", "select pg_current_wal_lsn()::text")
        query = "select coalesce(pg_last_wal_replay_lsn() >= $1::text::pg_lsn, false)"
        await self._until("standby", query, at)

    async def promote(self) -> None:
        """The primary is gone, the standby takes its place, and clients are led there."""
        await self.gate.close()
        await self._primary.stop()
        assert await self._ask("standby", "select pg_promote(wait_seconds => 60)")
        await self._until("standby", "select not pg_is_in_recovery()")
        self.gate.lead_to(self._layouts["standby"].url("postgresql"))
        await self.gate.open()

    async def _until(self, server: str, query: str, *args: Any) -> None:
        ends = time.monotonic() + LIMIT_S
        while not await self._ask(server, query, *args):
            assert time.monotonic() < ends, query
            await asyncio.sleep(0.05)

    async def _ask(self, server: str, query: str, *args: Any) -> Any:
        dsn = self._layouts[server].url("postgresql").replace(f"//{ROLE}@", "//postgres@")
        connection = await asyncpg.connect(dsn, timeout=LIMIT_S)
        try:
            return await connection.fetchval(query, *args, timeout=2 * LIMIT_S)
        finally:
            await connection.close(timeout=LIMIT_S)
