"""TLS files in the settings of all daemons: a certificate needs its key, and a key its certificate."""

from pathlib import Path


def check_pair(tls_cert: Path | None, tls_key: Path | None) -> None:
    """Refuses one without the other. Raises ValueError if one of both is missing."""
    if (tls_cert is None) != (tls_key is None):
        missing, given = ("tls_key", "tls_cert") if tls_key is None else ("tls_cert", "tls_key")
        raise ValueError(f"{missing} is required with {given}; give the certificate and its key")
