"""Address and key of the API: from flags, else a named context, the environment, the context in use, a `client.env`."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cli.errors import UsageError
from cli.transport.contexts import contexts_file, read_contexts

CLIENT_ENV: Final = "client.env"
DEFAULT_PORT: Final = 8420
_DEFAULT_URL: Final = f"http://127.0.0.1:{DEFAULT_PORT}"
_URL_NAMES: Final = "GPUWARD_URL (--url)"
_SYSTEM_DATA_DIR: Final = Path("/var/lib/gpuward")


@dataclass(frozen=True, slots=True)
class Connection:
    """A controller, or several that share a database."""

    url: str  # base URL without a trailing slash; several are separated by commas
    key: str | None  # None if unknown
    ca: Path | None = None  # the authority of the controller's certificate; None: the system's

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(self.url.split(","))


def default_data_dir(environ: Mapping[str, str], *, root: bool) -> Path:
    return _SYSTEM_DATA_DIR if root else _user_data_dir(environ)


def _user_data_dir(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_DATA_HOME")
    if base and Path(base).is_absolute():  # its specification says to ignore relative paths
        return Path(base) / "gpuward"
    return Path(environ["HOME"] if environ.get("HOME") else "~").expanduser() / ".local" / "share" / "gpuward"


def read_client_env(path: Path) -> dict[str, str]:
    """The variables of `NAME=value` lines; empty if the file is missing or not readable."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line and not line.lstrip().startswith("#"))
    return {name.strip(): value.strip().strip("'\"") for name, value in pairs}


def find_connection(
    url: str | None,
    key: str | None,
    *,
    context: str | None = None,
    environ: Mapping[str, str],
    data_dirs: Iterable[Path] | None = None,
) -> Connection:
    """The connection of the flags, else of GPUWARD_CONTEXT, else of GPUWARD_URL, else a stored connection.

    A key is used only with the address that it was given or stored with, so that it never leaks to another server: the
    key of GPUWARD_API_KEY never goes to a named context. With both an address and a key no file is read.

    Args:
        url: from `--url`.
        key: from `--api-key`.
        context: from `--context`.
        environ: has the variables, and determines the file of the contexts and the default data folders.
        data_dirs: folders that may contain `client.env`; None: the default data folders.

    Raises:
        UsageError: the URL is not valid, or `url` and `context` are both given.
        CliError: others may read the file of the contexts, or it cannot be read, or a context does not exist.
    """
    if url and context is not None:
        raise UsageError("--url and --context exclude each other; write the address, or the context that has it")
    named = named_context(context, environ) if not url else None
    if named is not None:
        chosen = read_contexts(contexts_file(environ)).get(named)
        ca = chosen.ca if chosen.ca is not None else _ca_in(environ)
        return Connection(valid_url(chosen.url, f"context {named}"), key or chosen.key, ca)
    ca = _ca_in(environ)
    url, key = url or environ.get("GPUWARD_URL"), key or environ.get("GPUWARD_API_KEY")
    if url and key:
        return Connection(valid_url(url, _URL_NAMES), key, ca)
    folders = data_dirs if data_dirs is not None else (_SYSTEM_DATA_DIR, _user_data_dir(environ))
    stored = [*_context_in_use(environ), *_first_complete(folders)]
    address = valid_url(url or (stored[0].url if stored else _DEFAULT_URL), _URL_NAMES)
    same = next((known for known in stored if known.url == address), Connection(address, None))
    return Connection(address, key or same.key, ca if ca is not None else same.ca)


def _ca_in(variables: Mapping[str, str]) -> Path | None:
    return Path(text).expanduser() if (text := variables.get("GPUWARD_CA")) else None


def named_context(flag: str | None, environ: Mapping[str, str]) -> str | None:
    """The context that `--context` or GPUWARD_CONTEXT names. An empty flag is a name, and an empty variable is not."""
    return flag if flag is not None else environ.get("GPUWARD_CONTEXT") or None


def valid_url(text: str, named: str) -> str:
    """The URL, or several with commas, without trailing slashes. `named`: the option or variable, for errors."""
    urls = [url.strip() for url in text.split(",") if url.strip()]
    for url in urls or [text]:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"{named}: {url!r} is not a valid URL; write one such as {_DEFAULT_URL}")
    return ",".join(dict.fromkeys(url.rstrip("/") for url in urls))


def _context_in_use(environ: Mapping[str, str]) -> list[Connection]:
    current = read_contexts(contexts_file(environ)).current()
    return [] if current is None else [Connection(current.url, current.key, current.ca)]


def _first_complete(folders: Iterable[Path]) -> list[Connection]:
    for folder in folders:
        env = read_client_env(folder / CLIENT_ENV)
        if "GPUWARD_URL" in env and "GPUWARD_API_KEY" in env:
            return [Connection(env["GPUWARD_URL"].rstrip("/"), env["GPUWARD_API_KEY"] or None, _ca_in(env))]
    return []


def current_default_data_dir() -> Path:
    return default_data_dir(os.environ, root=os.geteuid() == 0)
