"""What a client accepts: certificates of an authority, or exactly one certificate."""

import hashlib
import ssl
from functools import cache
from pathlib import Path
from typing import NamedTuple

from http1.tls.bounded import BoundedContext


class Pinned(NamedTuple):
    """Host and port of a server, and the SHA-256 of the certificate that it must show."""

    host: str
    port: int
    fingerprint: bytes


class Verified(NamedTuple):
    """Host and port of a server whose certificate an authority has signed for that host."""

    host: str
    port: int
    authority: ssl.SSLContext


@cache
def any_certificate() -> ssl.SSLContext:
    """For a connection that is not trusted before `is_pinned` holds: nothing may be sent on it until then."""
    context = BoundedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def is_pinned(connection: ssl.SSLObject | None, fingerprint: bytes) -> bool:
    """Whether the other side has shown this certificate, and that it has its key."""
    shown = None if connection is None else connection.getpeercert(binary_form=True)
    return shown is not None and hashlib.sha256(shown).digest() == fingerprint


def trusting(authority: Path | None) -> ssl.SSLContext:
    """Verifies against the certificates in a file alone; None: against those of the system.

    Raises:
        OSError: the file cannot be read, or holds no certificate.
    """
    context = BoundedContext(ssl.PROTOCOL_TLS_CLIENT)
    if authority is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(cafile=authority)
    return context
