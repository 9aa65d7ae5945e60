"""The only way to the engines from outside: an authenticated reverse proxy. Bytes pass unchanged.

`/engines/{instance}/{path}` goes to the engine's loopback port; `/logs/{instance}` reads its log. Only `/readyz` needs
no secret: it is for health checks, and reports only whether this agent is connected to a controller.
"""

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final, Self

import aiohttp
import structlog
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from agent.controller_heartbeat import ControllerHeartbeat
from agent.errors import AgentError
from agent.in_flight import InFlightRequests
from agent.instance_logs import LogReader
from agent.journal import Journal
from agent.process_records import ProcessRecord
from agent.processes.folders import InstanceFolders
from http1.connections import limits_for
from http1.files import connection_bound, raise_file_limit
from http1.site import BoundedSite, Bounds
from schemas.wire import PROXY_ENGINE_PREFIX, PROXY_LOGS_PREFIX, PROXY_REFUSAL_HEADER

READY_PATH: Final = "/readyz"
_HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# "authorization" holds the proxy's secret; "expect" is answered when the body is read.
_NOT_FORWARDED: Final = _HOP_BY_HOP | {"host", "authorization", "expect"}
_NOT_RETURNED: Final = _HOP_BY_HOP | {PROXY_REFUSAL_HEADER.lower()}
_CONNECT_LIMIT_S: Final = 5.0
_READ_LIMIT_S: Final = 900.0  # between two chunks: a long prompt on a slow engine delays the first token
_BODY_LIMIT_S: Final = 60.0
_WRITE_LIMIT_S: Final = 300.0
_SHUTDOWN_LIMIT_S: Final = 0.5
_KEEPALIVE_S: Final = 90.0  # the bounds end an idle connection earlier

log = structlog.get_logger()


class Proxy:
    """An async context: entering binds the port, leaving closes it."""

    def __init__(
        self,
        journal: Journal,
        folders: InstanceFolders,
        in_flight: InFlightRequests,
        heartbeat: ControllerHeartbeat,
        session: aiohttp.ClientSession,
        *,
        host: str,
        port: int,
    ) -> None:
        """`port` 0: the previous start's port, else any free one."""
        self._journal = journal
        self._in_flight = in_flight
        self._heartbeat = heartbeat
        self._session = session
        self._host = host
        self._wanted_port = port
        self._logs = LogReader(journal, folders)
        self._bounds = Bounds(limits_for(connection_bound(raise_file_limit())), name="agent's proxy")
        app = web.Application(middlewares=[self._bound, self._authenticate])
        app.router.add_route("*", PROXY_ENGINE_PREFIX + "/{instance}{path:(/.*)?}", self._forward)
        app.router.add_get(READY_PATH, self._ready)
        app.router.add_get(PROXY_LOGS_PREFIX + "/{instance}", self._logs.handle)
        self._runner = web.AppRunner(
            app,
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=_SHUTDOWN_LIMIT_S,
            keepalive_timeout=_KEEPALIVE_S,
        )
        self.port = 0

    async def __aenter__(self) -> Self:
        """Binds the port.

        Raises:
            AgentError: the port is in use.
        """
        await self._runner.setup()
        last = self._journal.facts.proxy_port or 0
        failure: OSError | None = None
        choices = [self._wanted_port] if self._wanted_port else [last, 0] if last else [0]
        for choice in choices:
            try:
                await BoundedSite(self._runner, self._bounds, self._host, choice).start()
            except OSError as error:
                failure = error
                continue
            self.port = self._runner.addresses[0][1]
            self._journal.remember(proxy_port=self.port)
            return self
        await self._runner.cleanup()
        raise AgentError(f"the proxy cannot listen on {self._host}:{choices[0]} ({failure}); set --proxy-port")

    async def __aexit__(self, *error: object) -> None:
        """Closes; requests still in flight are cut after a moment."""
        await self._runner.cleanup()

    @web.middleware
    async def _bound(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        with self._bounds.answering(request):
            return await handler(request)

    @web.middleware
    async def _authenticate(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.path == READY_PATH:
            return await handler(request)
        secret = self._journal.facts.proxy_secret
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if secret is None or not hmac.compare_digest(given, f"Bearer {secret}".encode()):
            return _error(401, "unauthorized", "Authorization: the proxy's secret is missing or wrong")
        if self._bounds.serve(request) is not None:
            return _error(503, "overloaded", "this worker's agent serves too many requests; try again in a moment")
        return await handler(request)

    async def _ready(self, _: web.Request) -> web.Response:
        connected = self._heartbeat.connected
        return web.json_response({"ready": connected}, status=200 if connected else 503)

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        instance = request.match_info["instance"]
        record = _newest_with_port(self._journal, instance)
        if record is None:
            return _error(404, "not_found", f"unknown instance {instance}, or an instance without a port")
        if record.state != "running":
            return _error(503, "not_running", f"instance {instance} is {record.state}")
        prefix = f"{PROXY_ENGINE_PREFIX}/{instance}"
        raw = request.raw_path
        target = raw[len(prefix) :] if raw.startswith(prefix) else request.match_info["path"]
        if not target.startswith("/"):
            target = "/" + target
        url = URL(f"http://127.0.0.1:{record.port}{target}", encoded=True)
        with self._in_flight.enter(instance):
            return await self._exchange(request, url)

    async def _exchange(self, request: web.Request, url: URL) -> web.StreamResponse:
        response: web.StreamResponse | None = None
        try:
            async with self._session.request(
                request.method,
                url,
                headers=_forwarded_headers(request.headers, _NOT_FORWARDED),
                data=_body(request) if request.body_exists else None,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_LIMIT_S, sock_read=_READ_LIMIT_S),
            ) as upstream:
                response = web.StreamResponse(
                    status=upstream.status,
                    reason=upstream.reason,
                    headers=_forwarded_headers(upstream.headers, _NOT_RETURNED),
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
                return _error(502, "engine_unreachable", f"the engine did not answer: {type(error).__name__}")
            # Part of the answer was sent: only a broken connection shows the client that the rest is missing.
            if request.transport is not None:
                request.transport.abort()
            return response


def _newest_with_port(journal: Journal, instance: str) -> ProcessRecord | None:
    """The instance's process that answers requests: the newest with a port."""
    found = [record for record in journal.of(instance) if record.port is not None]
    return max(found, key=lambda record: (record.alive, record.epoch, -record.rank), default=None)


def _forwarded_headers(headers: Mapping[str, str], dropped: frozenset[str]) -> CIMultiDict[str]:
    kept = CIMultiDict(headers)
    named = {name.strip().lower() for value in kept.getall("Connection", []) for name in value.split(",")}
    for name in {name for name in kept if name.lower() in dropped or name.lower() in named}:
        kept.popall(name)
    return kept


async def _body(request: web.Request) -> AsyncIterator[bytes]:
    while True:
        async with asyncio.timeout(_BODY_LIMIT_S):
            chunk = await request.content.readany()
        if not chunk:
            return
        yield chunk


def _error(status: int, code: str, message: str) -> web.Response:
    body = {"error": {"code": code, "message": message, "details": {}}}
    return web.json_response(body, status=status, headers={PROXY_REFUSAL_HEADER: code})
