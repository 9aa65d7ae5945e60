"""The login for a registry that `docker login` has stored for the agent's user."""

import asyncio
import os
import stat
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
import structlog

from agent.decide.registry_logins import config_trouble, file_login, has_none, helper_for, helper_login, server_of
from agent.program_io import output_of
from agent.tasks import in_background

_HELPER_LIMIT_S: Final = 10.0
_ANSWER_BYTES: Final = 65_536
_CONFIG_BYTES: Final = 2**20
_CONFIG_LIMIT_S: Final = 5.0
_FIX: Final = "correct it, or remove it and run `docker login` again as the agent's user"

log = structlog.get_logger()
_readers: Final = threading.Semaphore(16)  # threads that read the configuration at once


@dataclass(frozen=True, slots=True)
class Login:
    """The stored login of a registry. Public images can be pulled without it."""

    auth: dict[str, str] | None  # user and password, or a token
    trouble: str = ""  # why a stored login cannot be read, without any secret


class _ConfigError(Exception):
    """The configuration cannot be used; the message has no secret."""


async def stored_login(registry: str) -> Login:
    """Runs the credential helper that the configuration names, if any."""
    path = _config_path()
    if path is None:
        return Login(None)
    try:
        config = await _read_in_time(path)
        helper = helper_for(config, registry)
    except (_ConfigError, ValueError) as error:
        trouble = f"{path}: {error}; {_FIX}"
        log.warning("Docker login unknown", error=trouble)
        return Login(None, trouble)
    return Login(file_login(config, registry)) if helper is None else await _run_helper(helper, registry)


def _config_path() -> Path | None:
    """None if the agent's user has no home."""
    try:
        return Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    except RuntimeError:
        return None


async def _read_in_time(path: Path) -> dict[str, Any]:
    """The configuration; empty if the file is missing. A read that hangs is abandoned in its thread."""
    readers = _readers

    def read() -> dict[str, Any]:
        if not readers.acquire(blocking=False):
            raise _ConfigError("it cannot be read: earlier reads of it still hang")
        try:
            return _read_config(path)
        finally:
            readers.release()

    try:
        async with asyncio.timeout(_CONFIG_LIMIT_S):
            return await in_background(read)
    except TimeoutError as error:
        raise _ConfigError(f"it cannot be read within {_CONFIG_LIMIT_S:g} s") from error


def _read_config(path: Path) -> dict[str, Any]:
    """Blocks, for ever on a disk that hangs."""
    try:
        # Without O_NONBLOCK the open of a pipe would wait for its other end.
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise _ConfigError("it is not a regular file")
            with os.fdopen(opened, "rb", closefd=False) as file:
                text = file.read(_CONFIG_BYTES + 1)
        finally:
            os.close(opened)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise _ConfigError(f"it cannot be read: {error.strerror}") from error
    if len(text) > _CONFIG_BYTES:
        raise _ConfigError("it is longer than 1 MiB")
    try:
        config = orjson.loads(text if text.strip() else b"{}")  # Docker accepts an empty file
    except orjson.JSONDecodeError as error:
        raise _ConfigError("it is not valid JSON") from error
    if trouble := config_trouble(config):
        raise _ConfigError(trouble)
    return dict(config)


async def _run_helper(helper: str, registry: str) -> Login:
    program = f"docker-credential-{helper}"
    text, failed = await output_of(
        [program, "get"], _HELPER_LIMIT_S, given=server_of(registry).encode(), stderr=False, most_bytes=_ANSWER_BYTES
    )
    if failed:
        return Login(None, "" if has_none(text) else f"{program}: {failed}")
    try:
        return Login(helper_login(orjson.loads(text)))
    except orjson.JSONDecodeError:
        return Login(None, f"{program}: its answer is not valid JSON")
    except ValueError as error:
        return Login(None, f"{program}: {error}")
