"""Address and key of the API: from flags, else the environment, else `client.env` in a default data folder."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cli.errors import UsageError

CLIENT_ENV: Final = "client.env"
DEFAULT_PORT: Final = 8420
_DEFAULT_URL: Final = f"http://127.0.0.1:{DEFAULT_PORT}"
_SYSTEM_DATA_DIR: Final = Path("/var/lib/gpuward")


@dataclass(frozen=True, slots=True)
class Connection:
    """Base URL without a trailing slash, and API key; None: no key was found."""

    url: str
    key: str | None


def default_data_dir(environ: Mapping[str, str], *, root: bool) -> Path:
    """The default data folder: that of the system for root, else that of the user."""
    return _SYSTEM_DATA_DIR if root else _user_data_dir(environ)


def _user_data_dir(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_DATA_HOME")
    if base and Path(base).is_absolute():  # its specification says to ignore relative paths
        return Path(base) / "gpuward"
    return Path(environ["HOME"] if environ.get("HOME") else "~").expanduser() / ".local" / "share" / "gpuward"


def read_client_env(path: Path) -> dict[str, str]:
    """Reads `NAME=value` lines. The result is empty if the file is missing or not readable."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line and not line.lstrip().startswith("#"))
    return {name.strip(): value.strip().strip("'\"") for name, value in pairs}


def find_connection(
    url: str | None, key: str | None, *, environ: Mapping[str, str], data_dirs: Iterable[Path] | None = None
) -> Connection:
    """The connection to use.

    A stored key is used only with the URL that it was stored with, so that it never leaks to another server.

    Args:
        url: from `--url` or GPUWARD_URL.
        key: from `--api-key` or GPUWARD_API_KEY.
        environ: determines the default data folders.
        data_dirs: folders that may contain `client.env`; None: the default data folders.

    Raises:
        UsageError: the URL is not valid.
    """
    folders = data_dirs if data_dirs is not None else (_SYSTEM_DATA_DIR, _user_data_dir(environ))
    stored = _first_complete(folders)
    stored_url = stored.get("GPUWARD_URL", _DEFAULT_URL).rstrip("/")
    url = (url or stored_url).rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"GPUWARD_URL (--url): {url!r} is not a valid URL; write one such as {_DEFAULT_URL}")
    if not key and url == stored_url:
        key = stored.get("GPUWARD_API_KEY")
    return Connection(url=url, key=key or None)


def _first_complete(folders: Iterable[Path]) -> dict[str, str]:
    for folder in folders:
        found = read_client_env(folder / CLIENT_ENV)
        if "GPUWARD_URL" in found and "GPUWARD_API_KEY" in found:
            return found
    return {}


def current_default_data_dir() -> Path:
    """The default data folder of the current user."""
    return default_data_dir(os.environ, root=os.geteuid() == 0)
