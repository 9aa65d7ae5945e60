"""`client.env`: the controller's URL and the first administrator's key, for clients on the same machine."""

import os
from pathlib import Path

FILE_NAME = "client.env"


def write_client_env(data_dir: Path, url: str, key: str | None) -> None:
    """Writes the file atomically with mode 0600; without a new key it keeps the one in the existing file.

    Raises:
        OSError: if the folder cannot be written.
    """
    path = data_dir / FILE_NAME
    kept = key or _existing_key(path)
    lines = [f"GPUWARD_URL={url}\n"]
    if kept is not None:
        lines.append(f"GPUWARD_API_KEY={kept}\n")
    data_dir.mkdir(parents=True, exist_ok=True)
    draft = data_dir / f".{FILE_NAME}.{os.getpid()}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write("".join(lines))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _existing_key(path: Path) -> str | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    return next((line.partition("=")[2] for line in lines if line.startswith("GPUWARD_API_KEY=")), None)
