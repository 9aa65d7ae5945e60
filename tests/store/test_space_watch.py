"""The watch over the database's disk: a write ends the state of a full one, and a low one is a warning."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from controller import database_watch
from controller.database_watch import SpaceWatch
from controller.store.core.database import Database
from controller.store.core.database_space import DatabaseSpace

GIB = 2**30


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_watch, "SPACE_POLL_S", 0.02)


@asynccontextmanager
async def watched(database: Any, folder: Path | None = None) -> AsyncIterator[list[bool]]:
    changes: list[bool] = []
    task = asyncio.create_task(SpaceWatch(database, folder, changes.append).run())
    try:
        yield changes
    finally:
        task.cancel()
        await asyncio.wait([task])


async def until(seen: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not seen():  # noqa: ASYNC110 - the state has no event
            await asyncio.sleep(0.01)


async def refuse(database: Database) -> None:
    with pytest.raises(asyncpg.DiskFullError):
        async with database.transaction() as connection:
            await connection.execute("do $$ begin raise 'full' using errcode = 'disk_full'; end $$")


async def test_it_is_over_once_a_write_has_space(migrated: Database) -> None:
    async with watched(migrated) as changes:
        await refuse(migrated)
        await until(lambda: changes == [True, False])
        assert not migrated.space.full
        await refuse(migrated)
        await until(lambda: changes == [True, False, True, False])


async def test_it_lasts_while_writes_are_refused_where_none_may_be_tried(
    migrated: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The account of the database has no right to temporary tables."""

    async def not_allowed(_: Any) -> None:
        raise asyncpg.InsufficientPrivilegeError("permission denied to create temporary tables")

    monkeypatch.setattr(database_watch, "take_space", not_allowed)
    monkeypatch.setattr(database_watch, "UNTRIED_S", 1.0)
    async with watched(migrated) as changes:
        for _ in range(10):
            await refuse(migrated)
            await asyncio.sleep(0.05)
        assert changes == [True]
        await until(lambda: changes == [True, False])


class Away:
    """A database that does not answer."""

    def __init__(self) -> None:
        self.space = DatabaseSpace()

    async def ping(self) -> None:
        raise ConnectionRefusedError

    def transaction(self) -> Any:
        raise ConnectionRefusedError


def disk(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    found = SimpleNamespace(f_bavail=free, f_frsize=1, f_blocks=100 * GIB)
    monkeypatch.setattr(os, "statvfs", lambda _: found)


async def test_it_lasts_while_the_database_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A full disk has ended the embedded server; on one that is not full something else has."""
    away = Away()
    disk(monkeypatch, GIB // 2)
    async with watched(away, tmp_path) as changes:
        await until(lambda: away.space.low != "")
        assert changes == []
        disk(monkeypatch, 0)
        await until(lambda: changes == [True])
        disk(monkeypatch, 50 * GIB)
        await until(lambda: away.space.low == "")
        assert changes == [True]


async def test_a_low_disk_is_a_warning_until_there_is_enough(
    migrated: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    disk(monkeypatch, 0)
    async with watched(migrated, tmp_path) as changes:
        await until(lambda: "0 of" in migrated.space.low)
        disk(monkeypatch, GIB + 1)
        await until(lambda: "1,024 of" in migrated.space.low)
        disk(monkeypatch, 3 * GIB)
        await until(lambda: migrated.space.low == "")
        assert changes == []
