"""The certificate of the agent's proxy: an operator's files, or a self-signed certificate that the agent keeps."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from agent.errors import AgentError
from agent.settings import AgentSettings
from http1.tls.authority import write_private
from http1.tls.certificate import CertificateError, ServedCertificate
from http1.tls.issue import make_self_signed

FILE: Final = "proxy.pem"  # certificate and key, readable by the folder's owner only


def proxy_certificate(settings: AgentSettings, name: str) -> ServedCertificate | None:
    """None if the proxy speaks no TLS. Raises AgentError if the files cannot be used."""
    if not settings.speaks_tls():
        return None
    if settings.tls_cert is not None and settings.tls_key is not None:
        return _read(settings.tls_cert, settings.tls_key, "--tls-cert, --tls-key")
    own = settings.data_dir / FILE
    if not own.exists():
        # Self-signed, since callers accept exactly the certificate that the agent has reported to the controller.
        made = make_self_signed(name, datetime.now(UTC))
        try:
            write_private(own, made.certificate + made.key)
        except OSError as error:
            raise AgentError(
                f"{own} cannot be written: {error.strerror or error}; make room and rights there"
            ) from error
    return _read(own, own, str(own))


def _read(certificate: Path, key: Path, what: str) -> ServedCertificate:
    try:
        return ServedCertificate(certificate, key)
    except CertificateError as error:
        raise AgentError(f"{what}: {error}") from error
