"""Watches the disk of the database: how much of the embedded one's is free, and when a full one has space again."""

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from controller.decide.disk_pressure import disk_is_full
from controller.runtime.database import DATABASE_ERRORS, is_disk_full
from controller.store.core.database import Database
from controller.store.core.database_space import take_space

LOOK_S: Final = 3.0
UNTRIED_S: Final = 60.0  # without a refused write a disk has space again where no write of ours may try it
_LIMIT_S: Final = 10.0
_MIB: Final = 2**20
_TOO_LITTLE_BYTES: Final = 64 * _MIB  # the server writes its log in files of 16 MiB, and stops where one does not fit


class SpaceWatch:
    """Reports when the disk of the database is full, and when it no longer is.

    A refused write shows that it is full, to the part of this process that wanted it. Here that becomes visible, and
    ends once a write has space.

    Args:
        database: the one of this process.
        folder: where the embedded database is; None: the database is another host's, whose disk only errors show.
        changed: called when the disk has become full, and when it has space again, with whether it is full.
    """

    def __init__(self, database: Database, folder: Path | None, changed: Callable[[bool], None]) -> None:
        self._database = database
        self._folder = folder
        self._changed = changed
        self._shown = False
        self._low: bool | None = None

    async def run(self) -> None:
        """Watches until cancelled."""
        space = self._database.space
        while True:
            await self._look_at_disk()
            if space.full and self._shown:
                await self._try()
            if space.full != self._shown:
                self._shown = space.full
                self._changed(self._shown)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await space.changed.wait()
            space.changed.clear()

    async def _look_at_disk(self) -> None:
        """Notes how much is free. A database that does not even answer on a full disk has stopped because of it."""
        if self._folder is None:
            return
        try:
            async with asyncio.timeout(_LIMIT_S):
                found = await asyncio.to_thread(os.statvfs, self._folder)
        except OSError:
            return  # unknown: what was known stays
        free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
        self._low = disk_is_full(free, size, known=self._low)
        free_text = f"{free // _MIB:,} of {size // _MIB:,} MiB are free where the database is"
        self._database.space.low = free_text if self._low else ""
        if free < _TOO_LITTLE_BYTES and not self._database.space.full and not await self._answers():
            self._database.space.note_full(free_text)

    async def _answers(self) -> bool:
        try:
            async with asyncio.timeout(_LIMIT_S):
                await self._database.ping()
        except DATABASE_ERRORS:
            return False
        return True

    async def _try(self) -> None:
        """Ends the state if a write has space; where no right allows to try it, once no write is refused any more."""
        try:
            async with asyncio.timeout(_LIMIT_S), self._database.transaction() as connection:
                await take_space(connection)
        except DATABASE_ERRORS as error:
            quiet = time.monotonic() - self._database.space.refused_s >= UNTRIED_S
            if is_disk_full(error) or not _has_answered(error) or not quiet:
                return
        self._database.space.note_freed()


def _has_answered(error: Exception) -> bool:
    """Whether the server runs statements, though not this one."""
    return (getattr(error, "sqlstate", None) or "").startswith(("42", "25"))
