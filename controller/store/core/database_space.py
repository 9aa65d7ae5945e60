"""Whether the disk of the database is full, as this process has found out. Writes nothing itself."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Any, Final

import asyncpg
import structlog

from schemas.database_disk import DATABASE_FULL_TEXT

log = structlog.get_logger(__name__)

_LOG_EVERY_S: Final = 600.0
# What a failed system call gets as its state: resources, system and internal errors. PostgreSQL itself knows ENOSPC
# alone as a full disk, so a quota has the state of an internal error.
_STATES: Final = ("53", "58", "XX")
_TEXTS: Final = ("No space left on device", "Disk quota exceeded")
_MEMORY: Final = "shared memory segment"  # in /dev/shm, which has nothing to do with the database's disk


class DatabaseFullError(asyncpg.DiskFullError):  # type: ignore[misc]  # the driver has no types
    """The disk of the database is full. The cause is the driver's own error."""


def is_disk_full(error: BaseException) -> bool:
    """Whether the server lacks space on the disk where the database is, by its own words."""
    if not isinstance(error, asyncpg.PostgresError) or _MEMORY in str(error):
        return False
    state = error.sqlstate or ""
    if state == asyncpg.DiskFullError.sqlstate:
        return True
    return state.startswith(_STATES) and any(text in str(error) for text in _TEXTS)


class DatabaseSpace:
    """What is known of the disk of one database. Shared by everything of this process that uses the database.

    Attributes:
        since: of the first refused write; None: the disk is not known to be full.
        low: how little is free, in words, where that is known and less than should be; empty: enough, or unknown.
        refused_s: when the last sign of a full disk came, on the monotonic clock.
        changed: set when the disk becomes full; the watcher clears it.
    """

    def __init__(self) -> None:
        self.since: datetime | None = None
        self.low = ""
        self.changed = asyncio.Event()
        self.refused_s = float("-inf")
        self._logged_s = float("-inf")

    @property
    def full(self) -> bool:
        """Whether a write was refused, and none was possible since."""
        return self.since is not None

    def refused(self, error: BaseException) -> DatabaseFullError:
        """Notes that the server lacked space; returns the error to raise in place of its own."""
        self.note_full(str(error))
        return DatabaseFullError(DATABASE_FULL_TEXT)

    def note_full(self, detail: str) -> None:
        """Notes a full disk. Logged at the first time, and every ten minutes while it lasts."""
        if self.since is None:
            self.since = datetime.now(UTC)
            self._logged_s = float("-inf")
            self.changed.set()
        now_s = self.refused_s = time.monotonic()
        if now_s - self._logged_s >= _LOG_EVERY_S:
            self._logged_s = now_s
            log.error(DATABASE_FULL_TEXT, detail=detail)

    def note_freed(self) -> None:
        """Notes that a write which needs space was possible."""
        if self.since is not None:
            log.info("the disk of the database has space again", full_since=self.since.isoformat(timespec="seconds"))
        self.since = None


async def take_space(connection: Any) -> None:
    """Takes 1 MiB on the database's disk until the end of the transaction, so that a full disk shows.

    A temporary table: it needs no log, and leaves nothing.

    Raises:
        asyncpg.PostgresError: the disk is full, or the account may not try it.
    """
    await connection.execute("set local temp_tablespaces = ''")
    await connection.execute(
        "create temporary table space_wanted on commit drop as"
        " select repeat(md5(n::text), 32) as filling from generate_series(1, 1024) n"
    )
