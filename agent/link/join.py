"""Exchanges a join token for the worker's own credential."""

import ssl
from typing import Final

import aiohttp
from pydantic import ValidationError

from agent.errors import RefusedError, UnreachableError
from schemas.base import View
from schemas.wire import JOIN_PATH, LOWEST_PROTOCOL, JoinRequest, JoinResponse, encode

# Longer than the controller takes at most: a join whose answer is lost cannot be made again.
_JOIN_LIMIT_S: Final = 45.0
_CONNECT_LIMIT_S: Final = 15.0
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500
_ANSWER_MAX_BYTES: Final = 65_536


class _ApiError(View):
    message: str


class _ApiErrorBody(View):
    error: _ApiError


async def join(
    session: aiohttp.ClientSession, controller_url: str, request: JoinRequest, tls: ssl.SSLContext | bool = True
) -> JoinResponse:
    """One attempt to join. `tls`: verifies the controller's certificate.

    Raises:
        RefusedError: the controller refuses this token or name; the message is the controller's.
        UnreachableError: the controller cannot be reached or cannot serve now.
    """
    try:
        async with session.post(
            controller_url + JOIN_PATH,
            data=encode(request, LOWEST_PROTOCOL),
            headers={"Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=_JOIN_LIMIT_S, sock_connect=_CONNECT_LIMIT_S),
            allow_redirects=False,
            ssl=tls,
        ) as response:
            body = await response.content.read(_ANSWER_MAX_BYTES)
            if response.status == _TOO_MANY or response.status >= _SERVER_ERROR:
                raise UnreachableError(f"{controller_url} answers {response.status}")
            if not response.ok:
                raise RefusedError(f"{controller_url} refuses the join of {request.name!r}: {_reason(body)}")
            return JoinResponse.model_validate_json(body)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise UnreachableError(f"{controller_url} cannot be reached: {error!r}") from error
    except ValidationError as error:
        raise RefusedError(
            f"{controller_url}: the answer to the join is invalid; is this a Gpuward controller's address?"
        ) from error


def _reason(body: bytes) -> str:
    """The message of an error in the API's form, else the body's text."""
    try:
        return _ApiErrorBody.model_validate_json(body).error.message
    except ValidationError:
        return body.decode(errors="replace")[:300] or "no reason given"
