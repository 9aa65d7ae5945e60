"""The public port's certificate, and the authority that agents and clients of this host learn.

Files in the settings come first; else the authority of the data folder, whose server certificate this module renews.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog

from controller.api.context import Check, KnownAuthority
from controller.domain.attention import CertificateState
from controller.settings import ControllerSettings
from http1.tls.authority import Authority, AuthorityError
from http1.tls.certificate import WARN_BEFORE_S, CertificateError, ServedCertificate
from http1.tls.issue import describe, public_key_hash

log = structlog.get_logger(__name__)

_RENEW_EVERY_S: Final = 3600.0
_WARN_OF_AUTHORITY_S: Final = 90 * 86_400.0  # agents and clients must learn another authority by then


class ServingTlsError(Exception):
    """The certificate cannot be used; the message has what to do."""


@dataclass(frozen=True, slots=True)
class ServingTls:
    """The certificate in use."""

    files: tuple[Path, Path]  # certificate and key, in PEM; may be the same file
    certificate: ServedCertificate  # read from them
    ca: Path | None  # the authority's certificate, which agents and clients of this host learn; None: they know it
    authority: Authority | None  # of the data folder, where it issued the certificate

    def url(self, host: str, port: int) -> str:
        """The URL for clients of this host, by a name in the certificate."""
        names = describe(self.files[0].read_bytes()).names
        return f"https://{_reachable(host, names)}:{port}"

    def known_authority(self) -> KnownAuthority | None:
        """The authority in join tokens. Raises ServingTlsError if the authority's file cannot be used."""
        if self.ca is None:
            return None
        try:
            content = self.ca.read_bytes()
            return KnownAuthority(content, public_key_hash(content))
        except (OSError, ValueError) as error:
            raise ServingTlsError(f"{self.ca} cannot be used: {error}; give a certificate in PEM") from error

    def authority_ends(self) -> datetime | None:
        """The end of the authority's certificate; None: agents learn no authority. Raises as `known_authority`."""
        known = self.known_authority()
        return None if known is None else describe(known.certificate).ends

    def certificates(self, authority_ends: datetime | None) -> list[CertificateState]:
        """The certificates that an operator may have to replace."""
        ends = datetime.fromtimestamp(self.certificate.expires_s, UTC)
        certificates = [CertificateState(ends, WARN_BEFORE_S, problem=self.certificate.problem)]
        if authority_ends is not None:
            certificates.append(CertificateState(authority_ends, _WARN_OF_AUTHORITY_S, authority=True))
        return certificates

    def check(self) -> Check:
        """For /readyz: fails only with an expired certificate, not with files that cannot replace it."""
        state = self.certificate.state()
        return Check(ok="has expired" not in state, message=state)

    async def run(self) -> None:
        """Reads changed files again, and renews the certificate of the data folder's authority, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.certificate.watch(), name="certificate-files")
            if self.authority is not None:
                group.create_task(_keep_renewed(self.authority), name="certificate-renewal")


def serving_tls(settings: ControllerSettings) -> ServingTls | None:
    """The certificate of the settings or the data folder, if any. Raises ServingTlsError if it cannot be used."""
    authority = Authority(settings.data_dir)
    try:
        if settings.tls_cert is not None and settings.tls_key is not None:
            files = (settings.tls_cert, settings.tls_key)
            return ServingTls(files, ServedCertificate(*files), settings.tls_ca, None)
        if not authority.exists:
            return None
        authority.renew(datetime.now(UTC))
        files = (authority.server, authority.server)
        return ServingTls(files, ServedCertificate(*files), authority.certificate, authority)
    except (AuthorityError, CertificateError) as error:
        raise ServingTlsError(str(error)) from error


async def _keep_renewed(authority: Authority) -> None:
    while True:
        await asyncio.sleep(_RENEW_EVERY_S)
        try:
            await asyncio.to_thread(authority.renew, datetime.now(UTC))
        except AuthorityError as error:
            log.error("certificate not renewed", error=str(error))  # noqa: TRY400 - the message says what to do


def _reachable(host: str, names: Sequence[str]) -> str:
    """The bound host, if the certificate names it; else the first name without a pattern."""
    if host in names:
        return f"[{host}]" if ":" in host else host
    return next((name for name in names if "*" not in name and ":" not in name), host)
