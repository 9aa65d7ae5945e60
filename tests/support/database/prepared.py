"""The embedded database as the first start of a controller leaves it, migrated and empty, to begin clusters with."""

import asyncio
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from controller.store.core.database import Database
from controller.store.core.migrate import migrate
from controller.store.embedded import EmbeddedPostgres
from controller.store.embedded.layout import Layout
from support.database.postgres import quick_folder

_LIMIT_S = 180.0


@contextmanager
def prepared_database() -> Iterator[Path]:
    """The folder of such a database, which has been stopped."""
    with quick_folder() as folder, ThreadPoolExecutor(1) as pool:
        # In a thread: a loop of its own must not take the place of the test's.
        pool.submit(asyncio.run, _make(folder)).result(timeout=_LIMIT_S)
        yield Layout(folder).home


async def _make(folder: Path) -> None:
    async with EmbeddedPostgres(folder) as server:
        database = await Database.open(server.dsn, pool_size=1)
        try:
            await migrate(database)
        finally:
            await database.close()


def begin_with(prepared: Path, data_dir: Path) -> None:
    """Gives a new data folder a copy of a prepared database."""
    data_dir.mkdir(mode=0o711)
    # By cp, which keeps the account that the files belong to.
    subprocess.run(["cp", "--archive", str(prepared), str(Layout(data_dir).home)], check=True, timeout=_LIMIT_S)
