"""The worker's credential: the join with a token, and the consequence of a refusal."""

import contextlib
import hashlib
import ssl
from typing import Final, NoReturn

import aiohttp
import msgspec
import structlog

from agent.decide.unreachable import needs_tls
from agent.engine_proxy.secrets import NO_PROXY_SECRETS
from agent.errors import CredentialTakenError, RefusedError, UnreachableError
from agent.link.context import LinkContext
from agent.link.failure import read_at_most, why_unreachable
from agent.settings import AgentSettings
from agent.state.host_state import PendingJoin
from agent.state.journal import Journal
from schemas.version import __version__
from schemas.wire import (
    CREDENTIAL_HEADER,
    JOIN_PATH,
    LOWEST_PROTOCOL,
    JoinRequest,
    JoinResponse,
    encode,
    new_credential,
    split_token,
)

_TOKEN_FILE_MAX_CHARS: Final = 4_096
# Longer than the controller's limit: earlier versions refuse to repeat a join whose answer was lost.
_JOIN_LIMIT_S: Final = 45.0
_CONNECT_LIMIT_S: Final = 15.0
_TRY_AGAIN: Final = (408, 429)  # the request was too slow; too many failed
_CREDENTIAL_TAKEN: Final = "credential_taken"
_TLS_REQUIRED: Final = "tls_required"
_SERVER_ERROR: Final = 500
_ANSWER_MAX_BYTES: Final = 65_536

log = structlog.get_logger()


class _ApiError(msgspec.Struct):
    message: str
    code: str = ""


class _ApiErrorBody(msgspec.Struct):
    error: _ApiError


async def join(
    session: aiohttp.ClientSession,
    controller_url: str,
    request: JoinRequest,
    credential: str,
    tls: ssl.SSLContext | bool = True,
) -> JoinResponse:
    """One attempt to join, which may be repeated with the same credential.

    The agent chooses the credential; controllers of earlier versions answer with another.

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
            return msgspec.json.decode(body, type=JoinResponse)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise UnreachableError(str(why_unreachable(controller_url, error))) from error
    except msgspec.DecodeError as error:
        raise RefusedError(
            f"{controller_url}: the answer to the join is invalid; is this a Gpuward controller's address?"
        ) from error


def _reason(body: bytes) -> tuple[str, str]:
    """Code and message of an error in the API's form, else an empty code and the body's text."""
    try:
        error = msgspec.json.decode(body, type=_ApiErrorBody).error
    except msgspec.DecodeError:
        return "", body.decode(errors="replace")[:300] or "no reason given"
    return error.code, error.message


async def credentials(context: LinkContext) -> tuple[str, ...]:
    """The journal's credentials, the newest first. Without a credential the agent joins.

    A controller whose database was restored from a backup knows only an older credential.

    Raises:
        RefusedError: the agent has no token, or the controller refuses it.
        UnreachableError: the controller cannot be reached now.
    """
    journal = context.journal
    if journal.host_state.credential is None:
        token = _read_token(context.settings)
        if token is None:
            raise RefusedError("this worker has not joined yet: give it a token with --join-token")
        answer = await _join(context, token)
        journal.remember(
            worker=answer.worker,
            worker_uid=answer.worker_uid,
            credential=answer.credential,
            next_credential=None,
            previous_credential=None,
            pending_join=None,
            token_digest=_digest(token),
            highest_term=0,
            highest_session=0,
            told=None,
        )
        log.info("joined", worker=answer.worker, controller=context.controllers.url)
    state = journal.host_state
    known = (state.next_credential, state.credential, state.previous_credential)
    return tuple(credential for credential in known if credential is not None)


async def _join(context: LinkContext, given: str) -> JoinResponse:
    token, key_hash = split_token(given)
    if key_hash is not None:
        await context.controllers.learn(context.http, key_hash)
    request = JoinRequest(token=token, name=context.name, agent_version=__version__)
    tls = context.controllers.tls()
    credential = pending_credential(context.journal, token, context.name)
    try:
        return await join(context.http, context.controllers.url, request, credential, tls)
    except CredentialTakenError:
        context.journal.remember(pending_join=None)
        raise


def pending_credential(journal: Journal, token: str, name: str) -> str:
    """The credential for a join, the same for each attempt with a token and name.

    It is journalled first, so that the controller recognises a repeated attempt, also after an agent's crash.
    """
    pending = journal.host_state.pending_join
    digest = _digest(token)
    if pending is None or (pending.token_digest, pending.name) != (digest, name):
        pending = PendingJoin(token_digest=digest, name=name, credential=new_credential())
        journal.remember(pending_join=pending)
    return pending.credential


def remember_used(context: LinkContext, used: str) -> None:
    """Keeps an accepted credential as the worker's, and the previous one for a restored controller."""
    state = context.journal.host_state
    if used == state.credential and state.next_credential is None:
        return
    previous = state.credential if used != state.credential else state.previous_credential
    context.journal.remember(credential=used, next_credential=None, previous_credential=previous)


def credential_refused(context: LinkContext, why: str) -> NoReturn:
    """Drops the credential and raises UnreachableError if the agent has a new token, so that the next attempt joins.

    Else it raises RefusedError, which ends the agent.
    """
    token = None
    with contextlib.suppress(RefusedError):  # a removed file holds no new token
        token = _read_token(context.settings)
    if token is not None and _digest(token) != context.journal.host_state.token_digest:
        context.journal.remember(
            credential=None, next_credential=None, previous_credential=None, worker_uid=None, **NO_PROXY_SECRETS
        )
        raise UnreachableError(f"{why}; joining again with the new token")
    raise RefusedError(
        f"{context.controllers.url}: {why}. If this worker was deleted, join again with a --join-token "
        "for its name: gpuward join-token create --name NAME"
    )


def _read_token(settings: AgentSettings) -> str | None:
    """The join token, if any. The file is read each time, as its token may change. Raises RefusedError."""
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


def _digest(token: str) -> str:
    # The journal keeps no token, only its digest, to recognise a new token.
    return hashlib.sha256(token.encode()).hexdigest()
