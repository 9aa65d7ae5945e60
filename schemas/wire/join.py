"""The join: a token for a per-worker credential, over HTTP.

A token may include the SHA-256 of the public key of the controller's certificate authority. Then the agent requests
that certificate over an untrusted connection, compares it, and sends the token over a trusted connection.

The agent chooses and stores its credential before the request, so that it can repeat the request if an answer is lost.
It is sent in a header, which controllers of earlier versions ignore: they answer with their own credential.
"""

import re
import secrets
from typing import Annotated, Final

from msgspec import Meta

from schemas.wire.base import Wire

JOIN_PATH: Final = "/api/v1/join"
CA_PATH: Final = "/api/v1/ca"  # GET: the certificate of the controller's own authority, in PEM; 404 without one
# Not X-Gpuward-: gateways drop such headers of clients.
CREDENTIAL_HEADER: Final = "Gpuward-Credential"  # of a join: the agent's credential
CREDENTIAL_FORM: Final = "gpc_ and 43 to 128 of the characters A-Z, a-z, 0-9, - and _"
_CREDENTIAL: Final = re.compile(r"gpc_[A-Za-z0-9_-]{43,128}")
_HASHED: Final = re.compile(r"(?P<token>[^.]+)\.(?P<hash>[0-9a-f]{64})")


def token_with_authority(token: str, public_key_hash: str | None) -> str:
    """The token for an agent. `public_key_hash`: in hexadecimal digits; None: no own authority."""
    return token if public_key_hash is None else f"{token}.{public_key_hash}"


def split_token(given: str) -> tuple[str, str | None]:
    """The token itself, and the hash of the authority's public key, if any."""
    match = _HASHED.fullmatch(given)
    return (given, None) if match is None else (match["token"], match["hash"])


def new_credential() -> str:
    """A credential of 256 random bits."""
    return "gpc_" + secrets.token_urlsafe(32)


def is_credential(text: str) -> bool:
    """Whether a credential has the form `CREDENTIAL_FORM`, which holds 256 bits."""
    return _CREDENTIAL.fullmatch(text) is not None


WORKER_NAME: Final = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"


class JoinRequest(Wire, frozen=True, kw_only=True):
    """The body of `POST /api/v1/join`."""

    token: Annotated[str, Meta(max_length=512)]
    name: Annotated[str, Meta(pattern=rf"{WORKER_NAME[:-1]}\Z")]
    agent_version: str = ""


class JoinResponse(Wire, frozen=True, kw_only=True):
    """The credential is shown only once; the controller keeps its hash."""

    worker: str
    worker_uid: str
    credential: str
