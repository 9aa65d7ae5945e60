"""Whether the disk of the database is full, as this process has observed."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Any, Final

import asyncpg
import structlog

from schemas.database_disk import DATABASE_FULL_TEXT

log = structlog.get_logger(__name__)

_LOG_EVERY_S: Final = 600.0
# States of failed system calls: resources, system and internal errors. PostgreSQL takes ENOSPC alone for a full disk,
# so an exceeded quota has the state of an internal error.
_STATES: Final = ("53", "58", "XX")
_TEXTS: Final = ("No space left on device", "Disk quota exceeded")
_MEMORY: Final = "shared memory segment"  # in /dev/shm, which has nothing to do with the database's disk


class DatabaseFullError(asyncpg.DiskFullError):  # type: ignore[misc]  # the driver has no types
    """The disk of the database is full. The cause is the driver's own error."""


def is_disk_full(error: BaseException) -> bool:
    """Whether the server reports that it lacks space on the database's disk."""
    if not isinstance(error, asyncpg.PostgresError) or _MEMORY in str(error):
        return False
    state = error.sqlstate or ""
    if state == asyncpg.DiskFullError.sqlstate:
        return True
    return state.startswith(_STATES) and any(text in str(error) for text in _TEXTS)


class DatabaseSpace:
    """The state of a database's disk. All users of the database in this process share it.

    Attributes:
        since: time of the first refused write; None if the disk is not known to be full.
        low: a text about the free space if that is low; empty if it is sufficient or unknown.
        refused_s: time of the last refused write, on the monotonic clock.
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
        """Whether a write was refused, and none has succeeded since."""
        return self.since is not None

    def refused(self, error: BaseException) -> DatabaseFullError:
        """Records that the server lacked space; returns the error to raise instead of the driver's."""
        self.note_full(str(error))
        return DatabaseFullError(DATABASE_FULL_TEXT)

    def note_full(self, detail: str) -> None:
        """Records a full disk, and logs it once and then every ten minutes."""
        if self.since is None:
            self.since = datetime.now(UTC)
            self._logged_s = float("-inf")
            self.changed.set()
        now_s = self.refused_s = time.monotonic()
        if now_s - self._logged_s >= _LOG_EVERY_S:
            self._logged_s = now_s
            log.error(DATABASE_FULL_TEXT, detail=detail)

    def note_freed(self) -> None:
        """Records that a write which needs space has succeeded."""
        if self.since is not None:
            log.info("the disk of the database has space again", full_since=self.since.isoformat(timespec="seconds"))
        self.since = None


async def take_space(connection: Any) -> None:
    """Takes 1 MiB on the database's disk until the end of the transaction, which fails if the disk is full.

    It uses a temporary table, which writes no WAL.

    Raises:
        asyncpg.PostgresError: the disk is full, or the account may not try it.
    """
    await connection.execute("set local temp_tablespaces = ''")
    await connection.execute(
        "create temporary table space_wanted on commit drop as"
        " select repeat(md5(n::text), 32) as filling from generate_series(1, 1024) n"
    )
