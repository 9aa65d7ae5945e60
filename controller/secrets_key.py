"""The keys on disk: those that encrypt secrets, and those derived for agents' proxies.

The key of secrets comes from a setting, or from a file next to the embedded database. The gateways of this host read
the derived keys, which open only the secrets of agents' proxies, from a file.
"""

import asyncio
import os
import threading
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from controller.runtime.database import DATABASE_ERRORS
from controller.settings import ControllerSettings
from controller.store.access.proxy_secrets import PURPOSE, read_key_ids
from controller.store.access.secret_keys import SecretKeys, SecretsKeyError, new_key, parse_keys
from controller.store.access.secrets import list_secrets, seal_all, unreadable_secrets
from controller.store.core.database import Database

__all__ = [
    "KEY_FILE",
    "ProxyKeyFile",
    "SecretsKeyError",  # for cli, which imports nothing of the store
    "drop_old_keys",
    "open_keys",
    "protect_secrets",
    "proxy_keys",
    "renew_key",
]

KEY_FILE: Final = "secrets.key"
_MOST_BYTES: Final = 65_536
PROXY_KEY_FILE: Final = "proxy.key"  # next to the socket of the API
FOLLOW_EVERY_S: Final = 5.0
_LIMIT_S: Final = 10.0

log = structlog.get_logger(__name__)


def own_key_file(settings: ControllerSettings) -> Path | None:
    """The file that this controller makes itself; None: a setting names the key, or the database is external."""
    # Not with an external database, because it may have several controllers, and a key of one would lock out the rest.
    if settings.database_url is not None or settings.secrets_key_file or settings.secrets_key:
        return None
    return settings.data_dir / KEY_FILE


def open_keys(settings: ControllerSettings, *, make: bool = True) -> SecretKeys:
    """Reads the keys; `make`: makes one for an embedded database without a key. Raises SecretsKeyError. Blocks."""
    own = own_key_file(settings)
    file = own or settings.secrets_key_file
    if own is not None and not own.exists():
        if not make:
            return SecretKeys(lambda: ())
        write_key_file(own, (new_key(),))
        log.info("made a key that encrypts secrets; back it up apart from the database", file=str(own))
    text = None if settings.secrets_key is None else settings.secrets_key.get_secret_value()
    where = f"GPUWARD_SECRETS_KEY_FILE: {file}" if file is not None else "GPUWARD_SECRETS_KEY"

    def load() -> tuple[bytes, ...]:
        if file is not None:
            with file.open(encoding="ascii") as opened:
                return parse_keys(opened.read(_MOST_BYTES))
        return () if text is None else parse_keys(text)

    try:
        return SecretKeys(load)
    except (OSError, ValueError) as error:
        raise SecretsKeyError(f"{where}: {error}") from error


def write_key_file(file: Path, keys: tuple[str, ...]) -> None:
    """Writes keys, the present one first, readable only to this user. Raises SecretsKeyError if it cannot."""
    draft = file.with_suffix(".new")
    try:
        with suppress(FileNotFoundError):
            draft.unlink()
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as opened:
            opened.write("\n".join(keys) + "\n")
            opened.flush()
            os.fsync(opened.fileno())
        draft.replace(file)
    except OSError as error:
        raise SecretsKeyError(f"{file} cannot be written: {error.strerror or error}") from error


def renew_key(settings: ControllerSettings, keys: SecretKeys) -> None:
    """Adds a new first key to the own file, or reads the setting's file again. Raises SecretsKeyError. Blocks."""
    own = own_key_file(settings)
    if own is not None:
        write_key_file(own, (new_key(), *own.read_text(encoding="ascii").split()))
    _reload(keys)


def drop_old_keys(settings: ControllerSettings, keys: SecretKeys, in_use: Collection[str] = ()) -> None:
    """Keeps the first key in this controller's own file, and those that are in use. Blocks.

    `in_use`: ids of keys, and of keys derived for proxies, under which something is still encrypted.

    Raises:
        SecretsKeyError: the file cannot be read or written.
    """
    own = own_key_file(settings)
    if own is not None:
        first, *others = own.read_text(encoding="ascii").split()
        write_key_file(own, (first, *(text for text in others if _ids_of(text) & {*in_use})))
        _reload(keys)


def _ids_of(text: str) -> frozenset[str]:
    """The ids of a key and of the key derived for proxies."""
    key = SecretKeys(lambda: parse_keys(text))
    return frozenset((*key.ids, *key.branch(PURPOSE).ids))


def _reload(keys: SecretKeys) -> None:
    try:
        keys.reload()
    except (OSError, ValueError) as error:
        raise SecretsKeyError(f"the keys of secrets cannot be read: {error}") from error


async def protect_secrets(database: Database, keys: SecretKeys) -> None:
    """Encrypts secrets that are not encrypted yet, and logs those that cannot be read. A later start does the rest."""
    try:
        if keys.current:
            sealed, _ = await seal_all(database, keys, plain_only=True)
            if sealed:
                log.info("secrets encrypted", secrets=sealed, key=keys.current)
        async with database.connection() as connection:
            unreadable = await unreadable_secrets(connection, keys)
        stored = any(not secret.encrypted for secret in await list_secrets(database, keys))
    except DATABASE_ERRORS as error:
        log.warning("secrets not looked through", error=str(error) or type(error).__name__)
        return
    if unreadable:
        log.error("secrets cannot be read: their key is not here; see docs/access.md", secrets=unreadable)
    if stored and not keys.current:
        log.warning(
            "secrets are stored unencrypted: name a key on every controller and restart, which encrypts them",
            setting="GPUWARD_SECRETS_KEY_FILE",
            make="head -c 32 /dev/urandom | base64 > FILE",
        )


def proxy_keys(settings: ControllerSettings) -> tuple[str, ...]:
    """The keys for gateways of other hosts, the present one first; may be empty. Raises SecretsKeyError. Blocks."""
    return open_keys(settings, make=False).branch(PURPOSE).texts()


class ProxyKeyFile:
    """Keeps the gateways' file equal to the keys."""

    def __init__(self, database: Database, keys: SecretKeys) -> None:
        self._database = database
        self._keys = keys
        self._file: Path | None = None
        self._written: tuple[str, ...] = ()
        self._writing = threading.Lock()  # a rotation writes it from a thread of its own

    async def place(self, folder: Path) -> None:
        """Writes it into the folder of the API's socket. Without a key, an earlier file stays."""
        self._file = folder / PROXY_KEY_FILE
        await self._keep()

    def write(self) -> None:
        """Writes the keys where they have changed. Blocks. Raises SecretsKeyError if it cannot be written."""
        with self._writing:
            texts = self._keys.branch(PURPOSE).texts()
            if self._file is not None and texts and texts != self._written:
                write_key_file(self._file, texts)
                self._written = texts

    async def run(self) -> None:
        """Follows the keys until cancelled: another controller may have rotated them."""
        while True:
            await asyncio.sleep(FOLLOW_EVERY_S)
            try:
                async with asyncio.timeout(_LIMIT_S), self._database.connection() as connection:
                    ids = await read_key_ids(connection)
            except DATABASE_ERRORS:
                continue  # the next read is soon
            if not ids <= {*self._keys.ids, *self._keys.branch(PURPOSE).ids}:
                await self._keys.learn(ids)
            await self._keep()

    async def _keep(self) -> None:
        try:
            await asyncio.to_thread(self.write)
        except SecretsKeyError as error:
            log.error("gateways get no key of agents' proxies", error=str(error))  # noqa: TRY400 - the error has the remedy
