"""One request to an engine on its loopback port: its answer passes on, or an answer of ours says what happened.

What provably did not reach the engine is marked as a refusal, so that another replica may have it. All else is final.
"""

import asyncio
import errno
from collections.abc import AsyncIterator
from typing import Final

import aiohttp
import structlog
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from http1.client import BoundedConnector
from schemas.wire import HOP_BY_HOP, PROXY_OUTCOME_HEADER, PROXY_REFUSAL_HEADER, end_to_end, is_final

# Secrets and cookies of the hops before; "expect" is answered when the body is read.
_NOT_FORWARDED: Final = HOP_BY_HOP | {"host", "authorization", "x-api-key", "api-key", "cookie", "expect"}
_CONNECT_LIMIT_S: Final = 5.0
_READ_LIMIT_S: Final = 90_000.0  # between two pieces; a last resort, beyond the limits of any deployment
_BODY_LIMIT_S: Final = 60.0
_WRITE_LIMIT_S: Final = 300.0
KEPT_S: Final = 1.5  # idle connections. Engines end theirs after 5 s (uvicorn, llama.cpp) or 2 s (gunicorn)
_NO_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})

log = structlog.get_logger()


class _BrokeOffError(aiohttp.ClientError):
    """The connection to the engine ended, and the engine may have seen the request."""


async def _send_once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Keeps aiohttp from repeating a GET or PUT by itself, as it does when a kept connection ends."""
    try:
        return await send(request)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
        raise  # nothing was sent, and aiohttp does not repeat it
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _BrokeOffError(repr(error)) from error


def proxy_session() -> aiohttp.ClientSession:
    """For proxied requests alone: unlimited connections, nothing repeated or decoded, no proxy from the environment."""
    return aiohttp.ClientSession(
        connector=BoundedConnector(limit=0, keepalive_timeout=KEPT_S),
        middlewares=(_send_once,),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )


async def exchange(session: aiohttp.ClientSession, request: web.Request, url: URL) -> web.StreamResponse:
    """The engine's answer to the request, or ours."""
    response: web.StreamResponse | None = None
    try:
        async with session.request(
            request.method,
            url,
            headers=CIMultiDict(end_to_end(request.headers.items(), _NOT_FORWARDED)),
            data=_body(request) if request.body_exists else None,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_LIMIT_S, sock_read=_READ_LIMIT_S),
        ) as upstream:
            if not is_final(upstream.status):
                upstream.close()  # nothing else may be sent on this connection
                raise _BrokeOffError(f"status {upstream.status}")
            # Its reason phrase says nothing, and may hold what cannot be passed on.
            response = web.StreamResponse(
                status=upstream.status,
                headers=CIMultiDict(end_to_end(upstream.headers.items(), HOP_BY_HOP)),
            )
            await response.prepare(request)
            async for chunk in upstream.content.iter_any():
                async with asyncio.timeout(_WRITE_LIMIT_S):
                    await response.write(chunk)
            await response.write_eof()
            return response
    except (aiohttp.ClientError, TimeoutError) as error:
        log.info("engine's answer incomplete", url=str(url), error=repr(error))
        if response is None or not response.prepared:
            return _failed(error)
        # Part of the answer was sent: only a connection without its end shows that the rest is missing.
        _hang_up(request)
        return response


def refusal(status: int, code: str, message: str) -> web.Response:
    """An answer of ours to a request of which no byte went to an engine."""
    return _error(status, code, message, PROXY_REFUSAL_HEADER)


def _failed(error: Exception) -> web.Response:
    name = type(error).__name__
    match error:
        case aiohttp.ClientConnectorError() if error.errno in _NO_FILES:
            return refusal(503, "overloaded", "this worker's agent can open no more connections")
        case aiohttp.ClientConnectorError() | aiohttp.ConnectionTimeoutError():
            return refusal(503, "engine_refused", f"the engine accepts no connection: {name}")
        case TimeoutError():
            return _error(504, "timed_out", f"the engine was silent for {_READ_LIMIT_S:g} s", PROXY_OUTCOME_HEADER)
        case _:
            return _error(502, "engine_died", f"the engine ended before it answered: {name}", PROXY_OUTCOME_HEADER)


def _error(status: int, code: str, message: str, mark: str) -> web.Response:
    body = {"error": {"code": code, "message": message, "details": {}}}
    return web.json_response(body, status=status, headers={mark: code})


async def _body(request: web.Request) -> AsyncIterator[bytes]:
    while True:
        async with asyncio.timeout(_BODY_LIMIT_S):
            chunk = await request.content.readany()
        if not chunk:
            return
        yield chunk


def _hang_up(request: web.Request) -> None:
    """Ends the connection once all that was written has gone out; no end of the answer is written."""
    if request.transport is not None:
        request.transport.close()
        asyncio.get_running_loop().call_later(_WRITE_LIMIT_S, request.transport.abort)
