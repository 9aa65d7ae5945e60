"""`POST /api/v1/join`: exchanges a token for a worker's credential. Repeated failures are delayed."""

import asyncio
import hashlib
from typing import Final

import msgspec
import structlog
from aiohttp import web

from controller.runtime.audited import AUDITED, Audited
from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS
from controller.runtime.origin import BEHIND_PROXY
from controller.runtime.tries import Tries
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.access.tokens import redeem
from controller.store.core.database import Database
from controller.store.core.refusals import (
    CredentialTakenError,
    RefusedError,
    TokenRefusedError,
    WorkerNameTakenError,
)
from http1.daemon.log_limit import LogLimit
from schemas.api.envelopes import ErrorBody, ErrorView
from schemas.api.view import to_json
from schemas.wire import (
    CREDENTIAL_FORM,
    CREDENTIAL_HEADER,
    LOWEST_PROTOCOL,
    JoinRequest,
    encode,
    explain,
    is_credential,
    split_token,
)

log = structlog.get_logger(__name__)

MAX_BODY_BYTES: Final = 16 * 1024
BODY_LIMIT_S: Final = 10.0
JOIN_LIMIT_S: Final = 20.0
FAILURES: Final = 20  # a minute, of an address, or of a token behind a proxy
REDEEMED_AT_ONCE: Final = 4  # of the database's connections


class JoinHandler:
    """The handler and its limit of failures."""

    def __init__(self, database: Database, clock: Clock, keys: SecretKeys = NO_KEYS) -> None:
        self._database = database
        self._keys = keys
        self._clock = clock
        self._failures = Tries(FAILURES)
        self._redeeming = asyncio.Semaphore(REDEEMED_AT_ONCE)
        self._failed_logged = LogLimit()

    async def handle(self, request: web.Request) -> web.Response:
        """Answers a join: 200 credential, 400 malformed, 401 bad token, 409 name or credential taken, 429 wait."""
        peer = request.remote or ""
        # Behind a proxy many hosts may share an address, so the token is counted. Guessing is hopeless either way.
        by_token = request.get(BEHIND_PROXY, False)
        if not by_token and (wait_s := self._failures.wait_s(peer, self._clock.monotonic())):
            return _too_many("address", wait_s)
        body = await _body(request)
        try:
            wanted = msgspec.json.decode(body, type=JoinRequest)
            chosen = _chosen_credential(request)
        except (ValueError, RecursionError) as error:
            if not by_token:
                self._failures.begin(peer, self._clock.monotonic())
            return refusal(400, "invalid", explain(error))
        token, _ = split_token(wanted.token)  # agents before protocol 5 send the hash along
        counted = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest() if by_token else peer
        if by_token and (wait_s := self._failures.wait_s(counted, self._clock.monotonic())):
            return _too_many("token", wait_s)
        try:
            async with asyncio.timeout(JOIN_LIMIT_S), self._redeeming:
                answer = await redeem(self._database, token, wanted.name, chosen, self._keys)
        except RefusedError as error:
            self._failures.begin(counted, self._clock.monotonic())
            request[AUDITED] = Audited(f"workers/{wanted.name}", code=error.code)
            if (more := self._failed_logged.admit(f"refused {peer}")) is not None:
                log.info("join refused", worker=wanted.name, peer=peer, code=error.code, more_before=more)
            return refusal(_status(error), error.code, str(error))
        except DATABASE_ERRORS as error:
            if (more := self._failed_logged.admit("no database")) is not None:
                log.warning("join failed", worker=wanted.name, error=str(error), more_before=more)
            return refusal(
                503, "database_unavailable", "the database is unavailable; try again in a moment", retry_after_s=1.0
            )
        log.info("worker joined", worker=answer.worker, peer=peer)
        request[AUDITED] = Audited(f"workers/{answer.worker}", actor=f"agent:{answer.worker}")
        return web.json_response(text=encode(answer, LOWEST_PROTOCOL))


def _chosen_credential(request: web.Request) -> str | None:
    """The credential that the agent has chosen; None: the controller makes one, as for agents of earlier versions.

    Raises:
        ValueError: it is not well formed; the message does not show it.
    """
    given = request.headers.getall(CREDENTIAL_HEADER, [])
    if len(given) > 1:
        raise ValueError(f"{CREDENTIAL_HEADER}: must be given once, got {len(given)}")
    if given and not is_credential(given[0]):
        raise ValueError(f"{CREDENTIAL_HEADER}: must be {CREDENTIAL_FORM}, got {len(given[0])} characters")
    return given[0] if given else None


def _too_many(what: str, wait_s: int) -> web.Response:
    message = f"too many failed attempts from this {what}; try again in {wait_s} s"
    return refusal(429, "too_many_attempts", message, retry_after_s=wait_s)


def _status(error: RefusedError) -> int:
    match error:
        case TokenRefusedError():
            return 401
        case WorkerNameTakenError() | CredentialTakenError():
            return 409
        case _:
            return 400


async def _body(request: web.Request) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_LIMIT_S):
            async for chunk in request.content.iter_chunked(4096):
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES, len(body))
    except TimeoutError as error:  # the client's fault, so it is not logged
        raise web.HTTPRequestTimeout from error
    return bytes(body)


def refusal(status: int, code: str, message: str, *, retry_after_s: float | None = None) -> web.Response:
    """An error in the API's form."""
    body = ErrorView(error=ErrorBody(code=code, message=message))
    headers = {} if retry_after_s is None else {"Retry-After": str(max(1, round(retry_after_s)))}
    return web.Response(body=to_json(body), status=status, headers=headers, content_type="application/json")
