"""Exchanges a join token for the worker's own credential."""

import hashlib
from typing import Final

import aiohttp
from pydantic import ValidationError

from agent.errors import RefusedError, UnreachableError
from agent.settings import AgentSettings
from schemas.base import View
from schemas.wire import JOIN_PATH, JoinRequest, JoinResponse

_JOIN_LIMIT_S: Final = 15.0
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500
_ANSWER_MAX_BYTES: Final = 65_536
_TOKEN_FILE_MAX_CHARS: Final = 4_096


class _ApiError(View):
    message: str


class _ApiErrorBody(View):
    error: _ApiError


def token_digest(token: str) -> str:
    """What the journal keeps of a token, to tell a new one from the one that was used."""
    return hashlib.sha256(token.encode()).hexdigest()


def read_token(settings: AgentSettings) -> str | None:
    """The join token; None where none is given. A file is read anew each time: by then a new token may lie there.

    Raises:
        RefusedError: the file cannot be read, or is empty.
    """
    path = settings.join_token_file
    if path is None:
        return None if settings.join_token is None else settings.join_token.get_secret_value()
    try:
        with path.open(encoding="ascii") as file:
            token = file.read(_TOKEN_FILE_MAX_CHARS).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedError(f"--join-token-file: {path} cannot be read: {error}") from error
    if not token:
        raise RefusedError(f"--join-token-file: {path} is empty; write into it what `gpuward join-token create` prints")
    return token


async def join(session: aiohttp.ClientSession, controller_url: str, request: JoinRequest) -> JoinResponse:
    """One attempt to join.

    Raises:
        RefusedError: the controller does not take this token or name; the message is the controller's.
        UnreachableError: it could not be asked; trying again may help.
    """
    try:
        async with session.post(
            controller_url + JOIN_PATH,
            json=request.model_dump(),
            timeout=aiohttp.ClientTimeout(total=_JOIN_LIMIT_S),
            allow_redirects=False,
        ) as response:
            body = await response.content.read(_ANSWER_MAX_BYTES)
            if response.status == _TOO_MANY or response.status >= _SERVER_ERROR:
                raise UnreachableError(f"{controller_url} answers {response.status}")
            if not response.ok:
                raise RefusedError(f"{controller_url} refuses to let {request.name!r} join: {_reason(body)}")
            return JoinResponse.model_validate_json(body)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise UnreachableError(f"{controller_url} cannot be reached: {error!r}") from error
    except ValidationError as error:
        raise RefusedError(
            f"{controller_url} is no Gpuward controller: its answer to a join is not understood"
        ) from error


def _reason(body: bytes) -> str:
    """The message of an error in the API's form, else the text as it is."""
    try:
        return _ApiErrorBody.model_validate_json(body).error.message
    except ValidationError:
        return body.decode(errors="replace")[:300] or "no reason given"
