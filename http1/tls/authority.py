"""A private certificate authority in a folder: its certificate and key, and the server's certificate that it renews.

The server's certificate and its key are one file, so that a server that reads it sees both of one kind.
"""

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import structlog

from http1.tls.issue import Issued, describe, is_signed_by, issue_server, make_authority, public_key_hash

log = structlog.get_logger(__name__)

FOLDER: Final = "tls"  # in the data folder
ALWAYS: Final = ("localhost", "127.0.0.1", "::1")  # names of every server


class AuthorityError(Exception):
    """The folder's files cannot be used; the message has the remedy."""


class Authority:
    """The authority of a data folder, in a folder of its own. Only its user may read what it writes."""

    def __init__(self, data_dir: Path) -> None:
        folder = data_dir / FOLDER
        self.certificate = folder / "ca.crt"
        self.key = folder / "ca.key"
        self.server = folder / "server.pem"

    @property
    def exists(self) -> bool:
        return self.certificate.exists()

    @property
    def signs(self) -> bool:
        """Whether its key is there; without it certificates are used, but not renewed."""
        return self.key.exists()

    def make(self, now: datetime) -> None:
        """Makes one.

        Raises:
            AuthorityError: there is one already, or the folder cannot be written.
        """
        if self.exists or self.signs:
            raise AuthorityError(f"{self.certificate.parent} has a certificate authority already")
        made = make_authority(now)
        _write(self.key, made.key)  # first: a certificate without a key would count as one
        _write(self.certificate, made.certificate)

    def public_key_hash(self) -> str:
        """SHA-256 of its public key, in hexadecimal digits.

        Raises:
            AuthorityError: its certificate cannot be read.
        """
        try:
            return public_key_hash(_read(self.certificate))
        except ValueError as error:
            raise AuthorityError(f"{self.certificate} is not a certificate in PEM") from error

    def issue(self, names: Sequence[str], now: datetime) -> Issued:
        """A certificate for a server of these names.

        Raises:
            AuthorityError: its files cannot be used.
            ValueError: a name is not valid.
        """
        authority = Issued(_read(self.certificate), _read(self.key))
        return issue_server(authority, names, now)

    def issue_own(self, names: Sequence[str], now: datetime) -> None:
        """Makes the server's certificate, for these names and this host's own.

        Raises:
            AuthorityError: its files cannot be used or written.
            ValueError: a name is not valid.
        """
        made = self.issue(list(dict.fromkeys((*names, *ALWAYS))), now)
        _write(self.server, made.certificate + made.key)

    def renew(self, now: datetime) -> bool:
        """Renews the server's certificate where a third of its time is left, or another authority has signed it.

        Its names stay. Returns whether it is a new one.

        Raises:
            AuthorityError: the files cannot be used or written.
        """
        try:
            present = _read(self.server) if self.server.exists() else b""
            known = describe(present) if present else None
            if known is not None and is_signed_by(present, _read(self.certificate)) and not known.due_for_renewal(now):
                return False
            if not self.signs:
                if present:
                    log.warning("certificate not renewed: the key of its authority is not here", file=str(self.key))
                    return False
                raise AuthorityError(f"{self.server} is missing, and so is the authority's key {self.key}")
            self.issue_own(() if known is None else known.names, now)
        except ValueError as error:
            raise AuthorityError(f"{self.certificate.parent}: {error}; mend it, or remove the folder") from error
        log.info("certificate renewed", file=str(self.server))
        return True


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise AuthorityError(f"{path} cannot be read: {error.strerror or error}") from error


def write_private(path: Path, content: bytes) -> None:
    """Writes a file that only its user may read, in one step: a crash leaves the old or the new one.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _write(path: Path, content: bytes) -> None:
    try:
        write_private(path, content)
    except OSError as error:
        raise AuthorityError(f"{path} cannot be written: {error.strerror or error}") from error
