"""Watches the database: the revision of its schema, and the space on its disk."""

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from controller.decide.disk_pressure import disk_is_full
from controller.runtime.database import DATABASE_ERRORS, is_disk_full
from controller.store.core.database import Database
from controller.store.core.database_space import take_space
from controller.store.core.migrate import why_outdated

log = structlog.get_logger(__name__)

SCHEMA_POLL_S: Final = 5.0
SPACE_POLL_S: Final = 3.0
UNTRIED_S: Final = 60.0  # without a refused write a disk has space again where no write of ours may try it
_LIMIT_S: Final = 10.0
_MIB: Final = 2**20
_TOO_LITTLE_BYTES: Final = 64 * _MIB  # the server writes its log in files of 16 MiB, and stops without space for one


class SchemaWatch:
    """Refuses writes while the database is of a newer version, as after another controller's upgrade."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._woken = asyncio.Event()
        self._why: str | None = None

    def wake(self) -> None:
        """Polls now: the schema may have changed, since a migration ends the leader's term."""
        self._woken.set()

    async def run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(SCHEMA_POLL_S):
                    await self._woken.wait()
            self._woken.clear()
            with suppress(*DATABASE_ERRORS):  # others log its absence, and the next poll is soon
                async with asyncio.timeout(_LIMIT_S), self._database.connection() as connection:
                    self._note(await why_outdated(connection))

    def _note(self, why: str | None) -> None:
        if why == self._why:
            return
        self._why = why
        self._database.refuse_writes(why)
        if why is not None:
            log.error("this controller is outdated, and writes nothing", reason=why)
        else:
            log.info("the schema is known again: this controller writes")


class SpaceWatch:
    """Reports when the disk of the database is full, and when it no longer is.

    A refused write reveals a full disk to the part of this process that wanted to write. This class makes that visible,
    and ends it once a write has space. `folder`: of the embedded database; None: the database is on another host, whose
    disk only errors reveal. `changed` is called with whether the disk is full.
    """

    def __init__(self, database: Database, folder: Path | None, changed: Callable[[bool], None]) -> None:
        self._database = database
        self._folder = folder
        self._changed = changed
        self._shown = False
        self._low: bool | None = None

    async def run(self) -> None:
        space = self._database.space
        while True:
            await self._read_disk()
            if space.full and self._shown:
                await self._try()
            if space.full != self._shown:
                self._shown = space.full
                self._changed(self._shown)
            with suppress(TimeoutError):
                async with asyncio.timeout(SPACE_POLL_S):
                    await space.changed.wait()
            space.changed.clear()

    async def _read_disk(self) -> None:
        """Notes the free space. A database that does not answer on a full disk has stopped because of it."""
        if self._folder is None:
            return
        try:
            async with asyncio.timeout(_LIMIT_S):
                disk = await asyncio.to_thread(os.statvfs, self._folder)
        except OSError:
            return  # unknown: the last reading stays
        free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
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
        """Ends the state if a write has space; where this account may not try it, once no write is refused any more."""
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
