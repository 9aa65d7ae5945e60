"""The join: a token for a per-worker credential, over HTTP.

A token may carry the SHA-256 of the public key of the controller's certificate authority. Then the agent asks for that
certificate over a connection that it does not trust, compares, and sends the token over one that it does.
"""

import re
from typing import Annotated, Final

from pydantic import Field

from schemas.wire.base import Wire

JOIN_PATH: Final = "/api/v1/join"
CA_PATH: Final = "/api/v1/ca"  # GET: the certificate of the controller's own authority, in PEM; 404 without one
_HASHED: Final = re.compile(r"(?P<token>[^.]+)\.(?P<hash>[0-9a-f]{64})")


def token_with_authority(token: str, public_key_hash: str | None) -> str:
    """The token as it is given to an agent. `public_key_hash`: in hexadecimal digits; None: no authority of its own."""
    return token if public_key_hash is None else f"{token}.{public_key_hash}"


def split_token(given: str) -> tuple[str, str | None]:
    """The token itself, and the hash of the authority's public key; None: it carries none."""
    match = _HASHED.fullmatch(given)
    return (given, None) if match is None else (match["token"], match["hash"])


class JoinRequest(Wire):
    """The body of `POST /api/v1/join`."""

    token: Annotated[str, Field(max_length=512)]
    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]
    agent_version: str = ""


class JoinResponse(Wire):
    """The credential is shown only once; the controller keeps its hash."""

    worker: str
    worker_uid: str
    credential: str
