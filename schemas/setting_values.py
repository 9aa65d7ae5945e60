"""Values in the settings of all daemons."""

from pathlib import Path


def listed(value: object) -> object:
    """Splits `A, B`."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def check_pair(tls_cert: Path | None, tls_key: Path | None) -> None:
    """Raises ValueError for a certificate without key, or a key without certificate."""
    if (tls_cert is None) != (tls_key is None):
        missing, given = ("tls_key", "tls_cert") if tls_key is None else ("tls_cert", "tls_key")
        raise ValueError(f"{missing} is required with {given}; give the certificate and its key")
