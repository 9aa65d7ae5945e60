"""The only way to the engines from outside: an authenticated reverse proxy. Bytes pass unchanged.

`/engines/{instance}/{path}` goes to the engine's loopback port; `/logs/{instance}` reads its log. Only `/readyz` needs
no secret: it is for health checks, and reports only whether this agent is connected to a controller.
"""

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable
from typing import Final, Self

import aiohttp
import structlog
from aiohttp import web
from yarl import URL

from agent.controller_heartbeat import ControllerHeartbeat
from agent.engine_exchange import exchange, refusal
from agent.errors import AgentError
from agent.in_flight import InFlightRequests
from agent.instance_logs import LogReader
from agent.journal import Journal
from agent.process_records import ProcessRecord
from agent.processes.folders import InstanceFolders
from http1.connections import limits_for
from http1.files import connection_bound, raise_file_limit
from http1.server_log import MALFORMED, ServerLog
from http1.site import BoundedSite, Bounds
from schemas.wire import PROXY_ENGINE_PREFIX, PROXY_LOGS_PREFIX

READY_PATH: Final = "/readyz"
_SHUTDOWN_LIMIT_S: Final = 0.5
_KEEPALIVE_S: Final = 90.0  # the bounds end an idle connection earlier
_REFUSE_S: Final = 0.3  # before the port closes

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
        self._refusing_since: float | None = None
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
            logger=ServerLog("agent's proxy"),
            auto_decompress=False,
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

    def refuse_requests(self) -> None:
        """Refuses requests to engines from now on, so that other replicas get them; those in flight go on."""
        self._refusing_since = self._refusing_since or time.monotonic()

    async def let_callers_leave(self) -> None:
        """Waits until callers have had a moment to see the refusal.

        A request that arrives on a kept connection while that closes looks as if an engine may have seen it.
        """
        if self._refusing_since is not None:
            await asyncio.sleep(self._refusing_since + _REFUSE_S - time.monotonic())

    @web.middleware
    async def _bound(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        with self._bounds.answering(request):
            try:
                response = await _answer(request, handler)
            except web.HTTPException as error:  # an unknown path or method
                self._end_stranger(request, error)
                raise
            self._end_stranger(request, response)
            return response

    def _end_stranger(self, request: web.Request, response: web.StreamResponse) -> None:
        if self._bounds.is_last(request):
            response.force_close()

    @web.middleware
    async def _authenticate(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.path == READY_PATH:
            return await handler(request)
        secret = self._journal.facts.proxy_secret
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if secret is None or not hmac.compare_digest(given, f"Bearer {secret}".encode()):
            return refusal(401, "unauthorized", "Authorization: the proxy's secret is missing or wrong")
        if self._bounds.serve(request) is not None:
            return refusal(503, "overloaded", "this worker's agent serves too many requests; try again in a moment")
        return await handler(request)

    async def _ready(self, _: web.Request) -> web.Response:
        connected = self._heartbeat.connected
        return web.json_response({"ready": connected}, status=200 if connected else 503)

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        instance = request.match_info["instance"]
        if self._refusing_since is not None:
            answer = refusal(503, "stopping", "this worker's agent is stopping")
            answer.force_close()
            return answer
        record = _newest_with_port(self._journal, instance)
        if record is None:
            return refusal(404, "not_found", f"unknown instance {instance}, or an instance without a port")
        if record.state != "running":
            return refusal(503, "not_running", f"instance {instance} is {record.state}")
        prefix = f"{PROXY_ENGINE_PREFIX}/{instance}"
        raw = request.raw_path
        target = raw[len(prefix) :] if raw.startswith(prefix) else request.match_info["path"]
        if not target.startswith("/"):
            target = "/" + target
        url = URL(f"http://127.0.0.1:{record.port}{target}", encoded=True)
        with self._in_flight.enter(instance):
            return await exchange(self._session, request, url)


async def _answer(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """The handler's answer, or an error."""
    try:
        return await handler(request)
    except MALFORMED as error:
        return refusal(400, "invalid", f"body: incomplete or badly encoded: {error}")
    except OSError as error:  # no file is left, or the disk fails
        if request.task.cancelling() or isinstance(error, ConnectionError):
            raise
        log.warning("request failed", path=request.path, error=repr(error))
        return refusal(503, "unavailable", "this worker's agent cannot answer now; try again in a moment")


def _newest_with_port(journal: Journal, instance: str) -> ProcessRecord | None:
    """The instance's process that answers requests: the newest with a port."""
    found = [record for record in journal.of(instance) if record.port is not None]
    return max(found, key=lambda record: (record.alive, record.epoch, -record.rank), default=None)
