"""The file with the keys that open the secrets of agents' proxies, which the gateways of this host read.

They are derived from the keys of secrets, and open nothing else.
"""

import asyncio
import threading
from pathlib import Path
from typing import Final

import structlog

from controller.runtime.database import DATABASE_ERRORS
from controller.secrets_key import open_keys, write_key_file
from controller.settings import ControllerSettings
from controller.store.access.proxy_secrets import PURPOSE, read_key_ids
from controller.store.access.secret_keys import SecretKeys, SecretsKeyError
from controller.store.core.database import Database

__all__ = ["ProxyKeyFile", "SecretsKeyError", "proxy_keys"]

KEY_FILE: Final = "proxy.key"  # next to the socket of the API
LOOK_EVERY_S: Final = 5.0
_LIMIT_S: Final = 10.0

log = structlog.get_logger(__name__)


def proxy_keys(settings: ControllerSettings) -> tuple[str, ...]:
    """The keys for gateways of other hosts, the present one first; none: this controller has no key. Blocks.

    Raises:
        SecretsKeyError: its key cannot be read.
    """
    return open_keys(settings, make=False).branch(PURPOSE).texts()


class ProxyKeyFile:
    """Keeps the file like the keys."""

    def __init__(self, database: Database, keys: SecretKeys) -> None:
        self._database = database
        self._keys = keys
        self._file: Path | None = None
        self._written: tuple[str, ...] = ()
        self._writing = threading.Lock()  # a rotation writes it from a thread of its own

    async def place(self, folder: Path) -> None:
        """Writes it into the folder of the API's socket. An earlier file stays where the key is gone."""
        self._file = folder / KEY_FILE
        await self._keep()

    def write(self) -> None:
        """Writes the keys where they have changed. Blocks.

        Raises:
            SecretsKeyError: it cannot be written.
        """
        with self._writing:
            texts = self._keys.branch(PURPOSE).texts()
            if self._file is not None and texts and texts != self._written:
                write_key_file(self._file, texts)
                self._written = texts

    async def run(self) -> None:
        """Follows the keys until cancelled: another controller may have rotated them."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                async with asyncio.timeout(_LIMIT_S), self._database.connection() as connection:
                    ids = await read_key_ids(connection)
            except DATABASE_ERRORS:
                continue  # the next look is soon
            if not ids <= {*self._keys.ids, *self._keys.branch(PURPOSE).ids}:
                await self._keys.learn(ids)
            await self._keep()

    async def _keep(self) -> None:
        try:
            await asyncio.to_thread(self.write)
        except SecretsKeyError as error:
            log.error("gateways get no key of agents' proxies", error=str(error))  # noqa: TRY400 - it says what to do
