"""What the settings of all daemons say of TLS files: a certificate needs its key, and a key its certificate."""

from pathlib import Path
from typing import Protocol


class _HasFiles(Protocol):
    @property
    def tls_cert(self) -> Path | None: ...

    @property
    def tls_key(self) -> Path | None: ...


def check_pair(settings: _HasFiles) -> None:
    """Refuses one without the other.

    Raises:
        ValueError: one of both is missing.
    """
    if (settings.tls_cert is None) != (settings.tls_key is None):
        missing, given = ("tls_key", "tls_cert") if settings.tls_key is None else ("tls_cert", "tls_key")
        raise ValueError(f"{missing} is required with {given}; give the certificate and its key")
