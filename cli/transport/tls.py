"""What client verbs accept of a controller at `https://`: a certificate that an authority has signed, always."""

import ssl
from pathlib import Path

from cli.errors import UsageError
from http1.tls.pinned import trusting


def client_context(authority: Path | None) -> ssl.SSLContext:
    """Verifies against the authority in a file; None: against those of the system.

    Raises:
        UsageError: the file cannot be used.
    """
    try:
        return trusting(authority)
    except OSError as error:  # SSLError is one
        why = (
            error.strerror
            if not isinstance(error, ssl.SSLError) and error.strerror
            else "no certificate in PEM is there"
        )
        raise UsageError(f"GPUWARD_CA: {authority} cannot be used: {why}") from error
