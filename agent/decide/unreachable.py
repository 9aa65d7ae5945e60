"""Why a controller cannot be reached, and the remedy. Pure."""

import ssl
from dataclasses import dataclass
from typing import Final

_NOT_NOW: Final = (9, 10)  # not yet valid, no longer valid: numbers of X509_V_ERR in OpenSSL
_OTHER_NAME: Final = (62, 64)  # another host name, another address
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE")
_URL: Final = "--controller (GPUWARD_AGENT_CONTROLLER_URL)"
_CHECK: Final = "Check the address, the name service, and firewalls between this host and the controller."


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The cause and the remedy, as a sentence."""

    why: str
    remedy: str = _CHECK

    def __str__(self) -> str:
        return self.why if self.remedy is _CHECK else f"{self.why}. {self.remedy}"


def unreachable(url: str, error: Exception) -> Unreachable:
    """The cause of a connection's error."""
    match error:
        case ssl.SSLCertVerificationError():
            return _not_accepted(url, error)
        case ssl.SSLError() if error.reason in _NO_TLS:
            remedy = f"Give the controller a certificate, or write {url.replace('https:', 'http:', 1)} in {_URL}."
            return Unreachable(f"{url} speaks no TLS", remedy)
        case ssl.SSLError():
            return Unreachable(f"TLS with {url} fails: {error.reason or error}")
        case TimeoutError():
            return Unreachable(f"{url} cannot be reached: no answer in time")
        case _:
            return Unreachable(f"{url} cannot be reached: {str(error) or repr(error)}")


def _not_accepted(url: str, error: ssl.SSLCertVerificationError) -> Unreachable:
    if error.verify_code in _NOT_NOW:
        why = f"the certificate of {url} is not valid now: {error.verify_message}"
        return Unreachable(why, "Replace the certificate, or correct the clock of this host.")
    if error.verify_code in _OTHER_NAME:
        why = f"the certificate of {url} is for other names: {error.verify_message}"
        remedy = f"Write one of its names in {_URL}, or make a certificate for this one: gpuward ca init --name NAME."
        return Unreachable(why, remedy)
    why = f"this host does not trust the authority of {url}'s certificate: {error.verify_message}"
    remedy = "Copy the authority's file to this host (tls/ca.crt), and name it with --ca (GPUWARD_AGENT_CA)."
    return Unreachable(why, remedy)


def needs_tls(url: str) -> Unreachable:
    """The cause for a port that answers plain HTTP only with an error."""
    return Unreachable(f"{url} speaks TLS", f"Write {url.replace('http:', 'https:', 1)} in {_URL}.")
