"""Exchanges a join token for the worker's own credential."""

import ssl
from typing import Final

import aiohttp
import msgspec
from pydantic import ValidationError

from agent.decide.unreachable import needs_tls
from agent.errors import CredentialTakenError, RefusedError, UnreachableError
from agent.link.failure import why_unreachable
from http1.client import read_at_most
from schemas.api.view import View, from_json
from schemas.wire import CREDENTIAL_HEADER, JOIN_PATH, LOWEST_PROTOCOL, JoinRequest, JoinResponse, encode

# Longer than the controller takes at most: earlier versions refuse to repeat a join whose answer is lost.
_JOIN_LIMIT_S: Final = 45.0
_CONNECT_LIMIT_S: Final = 15.0
_TRY_AGAIN: Final = (408, 429)  # the request came too slowly; too many failed
_CREDENTIAL_TAKEN: Final = "credential_taken"
_TLS_REQUIRED: Final = "tls_required"
_SERVER_ERROR: Final = 500
_ANSWER_MAX_BYTES: Final = 65_536


class _ApiError(View, frozen=True, kw_only=True):
    message: str
    code: str = ""


class _ApiErrorBody(View, frozen=True, kw_only=True):
    error: _ApiError


async def join(
    session: aiohttp.ClientSession,
    controller_url: str,
    request: JoinRequest,
    credential: str,
    tls: ssl.SSLContext | bool = True,
) -> JoinResponse:
    """One attempt to join; it may be repeated with the same credential.

    Args:
        session: that asks.
        controller_url: of the controller.
        request: token and name.
        credential: that the agent has chosen. Controllers of earlier versions answer with another one.
        tls: verifies the controller's certificate.

    Raises:
        RefusedError: the controller refuses this token or name; the message is the controller's.
        CredentialTakenError: it refuses the credential.
        UnreachableError: the controller cannot be reached or cannot serve now; the worker may have joined.
    """
    try:
        async with session.post(
            controller_url + JOIN_PATH,
            data=encode(request, LOWEST_PROTOCOL),
            headers={"Content-Type": "application/json", CREDENTIAL_HEADER: credential},
            timeout=aiohttp.ClientTimeout(total=_JOIN_LIMIT_S, sock_connect=_CONNECT_LIMIT_S),
            allow_redirects=False,
            ssl=tls,
        ) as response:
            body = await read_at_most(response, _ANSWER_MAX_BYTES)
            if response.status in _TRY_AGAIN or response.status >= _SERVER_ERROR:
                raise UnreachableError(f"{controller_url} answers {response.status}")
            if not response.ok:
                code, reason = _reason(body)
                if code == _TLS_REQUIRED:
                    raise UnreachableError(str(needs_tls(controller_url)))
                refused = CredentialTakenError if code == _CREDENTIAL_TAKEN else RefusedError
                raise refused(f"{controller_url} refuses the join of {request.name!r}: {reason}")
            return JoinResponse.model_validate_json(body)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise UnreachableError(str(why_unreachable(controller_url, error))) from error
    except ValidationError as error:
        raise RefusedError(
            f"{controller_url}: the answer to the join is invalid; is this a Gpuward controller's address?"
        ) from error


def _reason(body: bytes) -> tuple[str, str]:
    """Code and message of an error in the API's form, else no code and the body's text."""
    try:
        error = from_json(_ApiErrorBody, body).error
    except msgspec.DecodeError:
        return "", body.decode(errors="replace")[:300] or "no reason given"
    return error.code, error.message
