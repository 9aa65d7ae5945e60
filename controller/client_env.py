"""`client.env`: the controller's URL and an administrator's key, for clients on the same machine."""

import asyncio
import os
from pathlib import Path
from typing import Final

import structlog

from controller.runtime.database import DATABASE_ERRORS
from controller.store.access.key_reads import find_keys, hash_secret
from controller.store.access.keys import create_first_key
from controller.store.core.database import Database
from http1.daemon.log_limit import LogLimit

log = structlog.get_logger(__name__)

FILE_NAME: Final = "client.env"
_WAIT_LOGGED_S: Final = 10.0
_RETRY_S: Final = 0.5


class ClientEnvError(Exception):
    """The file cannot be written; the message has the reason and what to do."""


def write_client_env(data_dir: Path, url: str, key: str | None, ca: Path | None = None) -> None:
    """Writes the file atomically with mode 0600. Without a new key it keeps the key of the existing file.

    `ca`: certificate of the authority by which clients verify the controller; None: the authorities of their system.

    Raises:
        ClientEnvError: the folder cannot be written.
    """
    path = data_dir / FILE_NAME
    draft = data_dir / f".{FILE_NAME}.{os.getpid()}"
    try:
        kept = key or stored_key(data_dir)
        lines = [f"GPUWARD_URL={url}\n"]
        if ca is not None:
            lines.append(f"GPUWARD_CA={ca.absolute()}\n")
        if kept is not None:
            lines.append(f"GPUWARD_API_KEY={kept}\n")
        data_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write("".join(lines))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise ClientEnvError(
            f"{path} cannot be written: {error.strerror or error}; make room and rights there, or use --data-dir"
        ) from error


def stored_url(data_dir: Path) -> str | None:
    return _existing(data_dir / FILE_NAME, "GPUWARD_URL")


def stored_ca(data_dir: Path) -> Path | None:
    path = _existing(data_dir / FILE_NAME, "GPUWARD_CA")
    return None if path is None else Path(path)


def stored_key(data_dir: Path) -> str | None:
    return _existing(data_dir / FILE_NAME, "GPUWARD_API_KEY")


def _existing(path: Path, name: str) -> str | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    return next((line.partition("=")[2] for line in lines if line.startswith(f"{name}=")), None)


async def publish_client_env(database: Database, folder: Path, url: str, ca: Path | None = None) -> bool:
    """Writes the file, with the first administrator's key at the first start. Waits for the database; returns True.

    Raises:
        ClientEnvError: the file cannot be written.
    """
    waiting = LogLimit(_WAIT_LOGGED_S)
    while True:
        try:
            first = await create_first_key(database, keep=lambda key: write_client_env(folder, url, key, ca))
            if first is None:
                write_client_env(folder, url, None, ca)
                await _warn_of_revoked_key(database, folder)
        except DATABASE_ERRORS as error:
            if waiting.admit("database") is not None:
                why = str(error) or type(error).__name__
                log.warning("waiting for the database, client.env is not written yet", error=why)
            await asyncio.sleep(_RETRY_S)
        else:
            return True


async def _warn_of_revoked_key(database: Database, folder: Path) -> None:
    key = stored_key(folder)
    async with database.connection() as connection:
        valid = key is not None and await find_keys(connection, [hash_secret(key)])
    if not valid:
        log.warning("the key in client.env is not valid; for a new one run: gpuward key reset")
