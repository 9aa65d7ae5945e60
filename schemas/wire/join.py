"""The join: a token for a per-worker credential, over HTTP.

A token may carry the SHA-256 of the public key of the controller's certificate authority. Then the agent asks for that
certificate over a connection that it does not trust, compares, and sends the token over one that it does.

The agent chooses its credential and keeps it before it asks, so that it can ask again when an answer is lost. It is
sent in a header: controllers of earlier versions ignore that, and answer with a credential of their own.
"""

import re
import secrets
from typing import Annotated, Final

from msgspec import Meta

from schemas.wire.base import Wire

JOIN_PATH: Final = "/api/v1/join"
CA_PATH: Final = "/api/v1/ca"  # GET: the certificate of the controller's own authority, in PEM; 404 without one
# Gateways drop clients' headers that begin with X-Gpuward-.
CREDENTIAL_HEADER: Final = "Gpuward-Credential"  # of a join: the credential that the agent has chosen
CREDENTIAL_FORM: Final = "gpc_ and 43 to 128 of the characters A-Z, a-z, 0-9, - and _"
_CREDENTIAL: Final = re.compile(r"gpc_[A-Za-z0-9_-]{43,128}")
_HASHED: Final = re.compile(r"(?P<token>[^.]+)\.(?P<hash>[0-9a-f]{64})")


def token_with_authority(token: str, public_key_hash: str | None) -> str:
    """The token as it is given to an agent. `public_key_hash`: in hexadecimal digits; None: no authority of its own."""
    return token if public_key_hash is None else f"{token}.{public_key_hash}"


def split_token(given: str) -> tuple[str, str | None]:
    """The token itself, and the hash of the authority's public key; None: it carries none."""
    match = _HASHED.fullmatch(given)
    return (given, None) if match is None else (match["token"], match["hash"])


def new_credential() -> str:
    """A credential of 256 random bits."""
    return "gpc_" + secrets.token_urlsafe(32)


def is_credential(text: str) -> bool:
    """Whether a credential has the form `CREDENTIAL_FORM`, in which 256 bits fit."""
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
