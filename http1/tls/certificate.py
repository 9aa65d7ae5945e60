"""The certificate that a server shows. It is read from files, and read again when they change.

Files that cannot be used leave the earlier certificate in use, so a mistake of an operator ends no service.
"""

import asyncio
import hashlib
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from http1.tls.bounded import BoundedContext

log = structlog.get_logger(__name__)

POLL_S: Final = 5.0
WARN_BEFORE_S: Final = 14 * 86_400.0
_WARN_EVERY_S: Final = 86_400.0
_MOST_BYTES: Final = 1024 * 1024


class CertificateError(Exception):
    """A certificate or its key cannot be used; the message names the file and says what to do."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A certificate in use. `expires_s`: the time, in seconds since 1970; `fingerprint`: SHA-256 of the sent form."""

    context: ssl.SSLContext
    expires_s: float
    fingerprint: bytes


def load(certificate: Path, key: Path) -> Loaded:
    """Reads a certificate, with those between it and its authority, and its key.

    Raises:
        CertificateError: a file cannot be read, is not in PEM, or the key is of another certificate.
    """
    first = _first_of(certificate)
    context = BoundedContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password=_refuse_passphrase)
    except _EncryptedKeyError:
        raise CertificateError(f"{key} is encrypted; give a key without a passphrase") from None
    except ssl.SSLError as error:
        why = "the key is of another certificate" if "MISMATCH" in str(error) else "no key in PEM is there"
        raise CertificateError(f"{key} cannot be used with {certificate}: {why}") from error
    except OSError as error:
        raise CertificateError(f"{key} cannot be read: {error.strerror or error}") from error
    fingerprint = hashlib.sha256(first.public_bytes(Encoding.DER)).digest()
    return Loaded(context, first.not_valid_after_utc.timestamp(), fingerprint)


class ServedCertificate:
    """A certificate and its key in files. `problem`: why the files cannot be used now; empty: they can."""

    def __init__(self, certificate: Path, key: Path, *, poll_s: float = POLL_S) -> None:
        self._files = (certificate, key)
        self._poll_s = poll_s
        self._last_state = _state_of(self._files)
        self._loaded = load(certificate, key)
        self._warned_s = float("-inf")
        self.problem = ""
        self._warn()

    @property
    def context(self) -> ssl.SSLContext:
        return self._loaded.context

    def listening_context(self) -> ssl.SSLContext:
        """For a server that takes one context for good: each handshake still shows the certificate in use."""

        def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self.context

        first = self.context
        first.sni_callback = choose
        return first

    @property
    def expires_s(self) -> float:
        """When the certificate in use ends, in seconds since 1970."""
        return self._loaded.expires_s

    @property
    def fingerprint(self) -> bytes:
        return self._loaded.fingerprint

    def state(self) -> str:
        """What an operator should know of it; empty: all is well."""
        if self.problem:
            return f"the new certificate is not used: {self.problem}"
        left_s = self.expires_s - time.time()
        if left_s <= 0:
            return f"the certificate in {self._files[0]} has expired; replace it"
        return f"the certificate ends in {left_s / 86_400:.1f} days; replace it" if left_s < WARN_BEFORE_S else ""

    def look(self) -> bool:
        """Reads the files again if they have changed. Returns whether another certificate is in use now."""
        state = _state_of(self._files)
        if state == self._last_state:
            self._warn()
            return False
        self._last_state = state
        try:
            loaded = load(*self._files)
        except CertificateError as error:
            self.problem = str(error)
            log.error("certificate not replaced, keeping the earlier one", error=self.problem)  # noqa: TRY400 - says it
            return False
        changed = loaded.fingerprint != self._loaded.fingerprint
        self._loaded, self.problem, self._warned_s = loaded, "", float("-inf")
        log.info("certificate read again", file=str(self._files[0]), expires_s=round(loaded.expires_s), new=changed)
        self._warn()
        return changed

    async def watch(self) -> None:
        """Checks the files every few seconds, until it is cancelled."""
        while True:
            await asyncio.sleep(self._poll_s)
            await asyncio.to_thread(self.look)  # a file may be on a disk that hangs

    def _warn(self) -> None:
        """Warns once a day of a certificate that ends soon."""
        now = time.monotonic()
        if self.expires_s - time.time() < WARN_BEFORE_S and now - self._warned_s >= _WARN_EVERY_S:
            self._warned_s = now
            log.warning("certificate ends soon", file=str(self._files[0]), state=self.state())


class _EncryptedKeyError(Exception):
    pass


def _refuse_passphrase() -> str:
    """Raises: otherwise OpenSSL would prompt at the terminal."""
    raise _EncryptedKeyError


def _first_of(path: Path) -> x509.Certificate:
    try:
        with path.open("rb") as file:
            return x509.load_pem_x509_certificates(file.read(_MOST_BYTES))[0]
    except OSError as error:
        raise CertificateError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise CertificateError(f"{path} holds no certificate in PEM; put the server's certificate first") from error


def _state_of(files: tuple[Path, Path]) -> tuple[tuple[int, int, int] | None, ...]:
    """What changes with the files, also where a link to them is moved."""
    states: list[tuple[int, int, int] | None] = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            states.append(None)
        else:
            states.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(states)
