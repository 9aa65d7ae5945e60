"""The gateway's connections to the database, and the changes that the database notifies."""

from pathlib import Path
from typing import Final

from controller.live.change_fanout import ChangeFanout
from controller.runtime.clock import SystemClock
from controller.runtime.feed import ChangeFeed
from controller.store.core.database import Database, DatabaseUrlError, normalise_dsn
from controller.store.core.events import GONE
from controller.store.embedded.layout import Layout

__all__ = [
    "DATABASE_KEPT_S",
    "Database",
    "DatabaseUrlError",
    "check_url",
    "embedded_url",
    "open_lazily",
    "publish_changes",
]

DATABASE_KEPT_S: Final = 0.5  # how old the checks of the database may be that a controller's `/readyz` shows
_CONNECTIONS: Final = 2


def embedded_url(data_dir: Path) -> str:
    """The URL of the database that a controller runs in its data folder."""
    return Layout(data_dir.absolute().resolve()).url("postgresql")


def check_url(url: str) -> None:
    """Raises DatabaseUrlError if the URL is not a PostgreSQL URL."""
    normalise_dsn(url)


async def open_lazily(url: str) -> Database:
    """Opens no connection yet: the database may be away. Raises DatabaseUrlError if the URL is not a PostgreSQL URL."""
    return await Database.open(normalise_dsn(url), pool_size=_CONNECTIONS, check=False)


async def publish_changes(database: Database, changes: ChangeFanout) -> None:
    """Listens until cancelled, and passes each change on."""

    def hint(kind: str, id_: str | None) -> None:
        if kind != GONE:  # a hint about the deployment follows
            changes.publish(kind, id_)

    await ChangeFeed(database.listen_connection, hint, SystemClock()).run()
