"""One request to one replica, through its agent: the engine's answer passes on, or a `Failure` says what happened."""

import asyncio
import errno
import io
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

import aiohttp
import structlog
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from controller.api.agent_proxies import AGENT_PROXIES
from controller.api.gateway.endpoints import Endpoint
from controller.api.gateway.event_stream import WholeEvents, is_event_stream
from controller.api.gateway.outcomes import VERDICTS, Happening, Settled, of_agents_answer
from controller.api.middlewares import REQUEST_ID
from controller.api.streams import SlowClientError, cut, hang_up
from schemas.wire import (
    HOP_BY_HOP,
    PROXY_ENGINE_PREFIX,
    PROXY_OUTCOME_HEADER,
    PROXY_REFUSAL_HEADER,
    end_to_end,
    is_final,
)

log = structlog.get_logger(__name__)

CLIENT_STALL_S: Final = 60.0  # a client that reads nothing for so long counts as gone
# A client's keys and cookies are between it and the gateway.
_NOT_FORWARDED: Final = HOP_BY_HOP | {
    "host", "authorization", "x-api-key", "api-key", "cookie", "content-length", "expect", "x-request-id",
}  # fmt: skip
_NOT_RETURNED: Final = HOP_BY_HOP | {"date", "server", "set-cookie", "x-request-id"}
_OUR_HEADERS_ONLY: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_NO_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})
_MOST_HELD_BYTES: Final = 2**20  # of a 503 that is kept while other replicas are tried
_HELD_LIMIT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class HeldAnswer:
    """An engine's 503, kept for the case that no other replica answers."""

    status: int
    headers: CIMultiDict[str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Failure:
    """What happened instead of an answer. `detail` is for the log and the error; `held`: the engine's own 503."""

    happening: Happening
    detail: str
    held: HeldAnswer | None = None


class _ClientGoneError(Exception):
    """The client left, or reads nothing."""


async def exchange(
    request: web.Request, endpoint: Endpoint, body: bytes, answered: Callable[[], None]
) -> web.StreamResponse | Failure:
    """The response to the client, or what happened before it began.

    Args:
        request: of the client.
        endpoint: of the replica.
        body: for the engine.
        answered: called when an engine's own answer begins.
    """
    relay: _Relay | None = None
    limits = endpoint.limits
    try:
        async with (
            asyncio.timeout(limits.first_token_timeout) as patience,
            _send(request, endpoint, body) as answer,
        ):
            happening = of_agents_answer(
                refusal=answer.headers.get(PROXY_REFUSAL_HEADER),
                outcome=answer.headers.get(PROXY_OUTCOME_HEADER),
                status=answer.status,
            )
            if happening is Happening.ENGINE_BUSY:
                return Failure(happening, "the engine answered 503", await _hold(answer))
            if happening is not None:
                return Failure(happening, _mark(answer))
            if not is_final(answer.status):
                answer.close()
                return Failure(Happening.BROKE_OFF, f"status {answer.status}")
            answered()
            # The headers wait for the first piece: until then, an end of the engine is still an error with a status.
            piece = await answer.content.readany()
            relay = _Relay(request, answer)
            while piece:
                patience.reschedule(None)
                await relay.pass_on(piece)
                patience.reschedule(asyncio.get_running_loop().time() + limits.silence_timeout)
                piece = await answer.content.readany()
            return await relay.end()
    except _ClientGoneError as error:
        log.info("client gone", instance=endpoint.instance, error=str(error))
        cut(request)
        return relay.response if relay is not None else web.Response()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        begun = relay if relay is not None and relay.begun else None
        failure = Failure(happening_of(error, begun=begun is not None), str(error) or type(error).__name__)
        return failure if begun is None else await begun.break_off(failure, endpoint)


def _send(request: web.Request, endpoint: Endpoint, body: bytes) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
    """Sends it, once: aiohttp itself repeats idempotent methods only, and POST is not one."""
    headers = CIMultiDict(end_to_end(request.headers.items(), _NOT_FORWARDED))
    headers["Authorization"] = f"Bearer {endpoint.secret}"
    headers["X-Request-ID"] = request[REQUEST_ID]
    # Kept as the client encoded it: parsing and encoding again would change it.
    url = URL(
        f"http://{endpoint.address}{PROXY_ENGINE_PREFIX}/{endpoint.instance}{request.rel_url.raw_path_qs}", encoded=True
    )
    return request.app[AGENT_PROXIES].post(
        url, data=io.BytesIO(body), headers=headers, skip_auto_headers=_OUR_HEADERS_ONLY, allow_redirects=False
    )


def _mark(answer: aiohttp.ClientResponse) -> str:
    return answer.headers.get(PROXY_REFUSAL_HEADER) or answer.headers.get(PROXY_OUTCOME_HEADER) or ""


async def _hold(answer: aiohttp.ClientResponse) -> HeldAnswer | None:
    """The whole answer; None where it is too large or does not end."""
    try:
        async with asyncio.timeout(_HELD_LIMIT_S):
            body = bytearray()
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > _MOST_HELD_BYTES:
                    return None
    except (aiohttp.ClientError, TimeoutError):
        return None
    headers = _returned(answer.headers)
    headers.popall("Content-Length", None)
    return HeldAnswer(answer.status, headers, bytes(body))


def _returned(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    return CIMultiDict(end_to_end(headers.items(), _NOT_RETURNED))


def happening_of(error: Exception, *, begun: bool) -> Happening:
    """What an error says. Only an error of connecting proves that no byte was sent."""
    match error:
        case aiohttp.ClientConnectorError() if error.errno in _NO_FILES:
            return Happening.NO_FILES
        case aiohttp.ClientConnectorError() | aiohttp.ConnectionTimeoutError():
            return Happening.NOT_CONNECTED
        case TimeoutError() if error.errno is None:  # a deadline of ours; the kernel's ETIMEDOUT has a number
            return Happening.SILENT_MIDWAY if begun else Happening.SILENT
        case _:
            return Happening.BROKE_OFF_MIDWAY if begun else Happening.BROKE_OFF


class _Relay:
    """Passes one answer on to the client, piece by piece. `begun`: whether its headers were sent."""

    def __init__(self, request: web.Request, answer: aiohttp.ClientResponse) -> None:
        self._request = request
        self._events = (
            WholeEvents()
            if is_event_stream(answer.headers.get("Content-Type", ""), answer.headers.get("Content-Encoding", ""))
            else None
        )
        headers = _returned(answer.headers)
        self.response = web.StreamResponse(status=answer.status, headers=headers)
        self.begun = False

    async def pass_on(self, piece: bytes) -> None:
        await self._write(piece if self._events is None else self._events.pass_on(piece))

    async def end(self) -> web.StreamResponse:
        await self._write(b"" if self._events is None else self._events.rest())
        try:
            async with asyncio.timeout(CLIENT_STALL_S):
                await self.response.write_eof()
        except (ConnectionError, TimeoutError) as error:
            raise _ClientGoneError(repr(error)) from error
        return self.response

    async def break_off(self, failure: Failure, endpoint: Endpoint) -> web.StreamResponse:
        """Tells the client by an error event where it reads events, and by the cut connection in any case."""
        verdict = VERDICTS[failure.happening]
        code = verdict.code if isinstance(verdict, Settled) else ""
        log.warning("answer broke off", instance=endpoint.instance, code=code, error=failure.detail)
        if self._events is not None:
            message = f"the answer of {endpoint.model!r} broke off ({code}); it is incomplete and is not repeated"
            try:
                await self._write(self._events.error(self._request.path, code, message))
            except _ClientGoneError:
                cut(self._request)
                return self.response
        hang_up(self._request, CLIENT_STALL_S)
        return self.response

    async def _write(self, piece: bytes) -> None:
        try:
            async with asyncio.timeout(CLIENT_STALL_S):
                if not self.begun:
                    self.begun = True
                    await self.response.prepare(self._request)
                if piece:
                    await self.response.write(piece)
        except (ConnectionError, TimeoutError, SlowClientError) as error:
            raise _ClientGoneError(repr(error)) from error
