"""`client.env`: the controller's URL and an administrator's key, for clients on the same machine."""

import os
from pathlib import Path

FILE_NAME = "client.env"


class ClientEnvError(Exception):
    """The file cannot be written; the message has the reason and what to do."""


def write_client_env(data_dir: Path, url: str, key: str | None, ca: Path | None = None) -> None:
    """Writes the file atomically with mode 0600; without a new key it keeps the one in the existing file.

    `ca`: the certificate of the authority by which clients know the controller; None: those of their system.

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
    """The URL in the file; None without one."""
    return _existing(data_dir / FILE_NAME, "GPUWARD_URL")


def stored_ca(data_dir: Path) -> Path | None:
    """The authority's certificate in the file; None without one."""
    found = _existing(data_dir / FILE_NAME, "GPUWARD_CA")
    return None if found is None else Path(found)


def stored_key(data_dir: Path) -> str | None:
    """The key in the file; None without one."""
    return _existing(data_dir / FILE_NAME, "GPUWARD_API_KEY")


def _existing(path: Path, name: str) -> str | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    return next((line.partition("=")[2] for line in lines if line.startswith(f"{name}=")), None)
