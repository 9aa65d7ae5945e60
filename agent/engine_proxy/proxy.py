"""The authenticated reverse proxy to the engines, which have no other port to the outside. Bytes pass unchanged.

`/engines/{instance}/{path}` goes to the engine's loopback port; `/logs/{instance}` reads its log. Only health checks
need no secret: `/healthz` for a live agent, and `/readyz` for one that is connected to a controller.
"""

import asyncio
import hmac
import time
from functools import partial
from typing import Final, Self
from urllib.parse import unquote

import orjson
import structlog

from agent.decide.stalls import Wait
from agent.engine_proxy.answers import error_body, refuse
from agent.engine_proxy.engine_exchange import PROGRESS, Engines
from agent.engine_proxy.in_flight import InFlightRequests
from agent.engine_proxy.secrets import is_other_secret
from agent.errors import AgentError
from agent.link.controller_heartbeat import ControllerHeartbeat
from agent.logs.instance_logs import LogReader
from agent.model_cache.answers import CacheAnswers
from agent.processes.folders import InstanceFolders
from agent.state.journal import Journal
from agent.state.process_records import ProcessRecord
from http1.daemon.log_limit import MalformedLog
from http1.daemon.open_files import connection_bound, raise_file_limit
from http1.protocol.connection_admission import ConnectionAdmission
from http1.protocol.connection_rules import ADMINISTRATOR, KEY, limits_for
from http1.protocol.framing import MessageError
from http1.protocol.handler import DROPPED, Handler
from http1.protocol.heads import RequestHead
from http1.protocol.server import Server
from http1.protocol.server_connection import ServerConnection, Service
from http1.protocol.streamed_answer import StreamedAnswer
from http1.tls.certificate import ServedCertificate
from schemas.wire import PROXY_CACHE, PROXY_ENGINE_PREFIX, PROXY_LOGS_PREFIX

HEALTH_PATH: Final = b"/healthz"
READY_PATH: Final = b"/readyz"
_ENGINES: Final = PROXY_ENGINE_PREFIX.encode() + b"/"
_NO_SUCH_PATH: Final = "this is an agent of Gpuward, which has no such path; ask the controller"
_CACHE: Final = PROXY_CACHE.encode()
_LOGS: Final = PROXY_LOGS_PREFIX.encode() + b"/"
_TARGET: Final = object()  # key of the parsed target that equal heads share
_JSON: Final = (b"content-type", b"application/json; charset=utf-8")
_NAME: Final = "agent's proxy"
_SHUTDOWN_LIMIT_S: Final = 0.5
_REFUSE_S: Final = 0.3  # before the port closes
_LOG_STALL_S: Final = 60.0

log = structlog.get_logger()


class Proxy:
    """An async context: entering binds the port, leaving closes it."""

    def __init__(
        self,
        journal: Journal,
        folders: InstanceFolders,
        in_flight: InFlightRequests,
        heartbeat: ControllerHeartbeat,
        cache: CacheAnswers,
        *,
        host: str,
        port: int,
        certificate: ServedCertificate | None = None,
    ) -> None:
        """`port` 0: the previous start's port, else any free one."""
        self._journal = journal
        self._in_flight = in_flight
        self._heartbeat = heartbeat
        self._host = host
        self._wanted_port = port
        self._refusing_since: float | None = None
        self._logs = LogReader(journal, folders)
        self._cache = cache
        self._limits = limits_for(connection_bound(raise_file_limit()))
        admission = ConnectionAdmission(self._limits, name=_NAME)
        context = None if certificate is None else lambda: certificate.context
        # Plain connections too, for health checks and gateways of older versions; newer gateways always speak TLS.
        self._server = Server(Service(self._handle, _Malformed(), admission, PROGRESS), context, plain=True)
        self._engines: Engines | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        """Raises AgentError if the port is in use."""
        last = self._journal.host_state.proxy_port or 0
        failure: OSError | None = None
        choices = [self._wanted_port] if self._wanted_port else [last, 0] if last else [0]
        for choice in choices:
            try:
                await self._server.listen(self._host, choice)
            except OSError as error:
                failure = error
                continue
            self._engines = Engines(self._in_flight, self._limits.most)
            self.port = self._server.port
            self._journal.remember(proxy_port=self.port)
            return self
        raise AgentError(f"the proxy cannot listen on {self._host}:{choices[0]} ({failure}); set --proxy-port")

    async def __aexit__(self, *error: object) -> None:
        """Aborts requests that are still in flight after `_SHUTDOWN_LIMIT_S`."""
        await self._server.close(_SHUTDOWN_LIMIT_S)
        if self._engines is not None:
            self._engines.close()

    def waits(self, instance: str) -> tuple[list[Wait], float | None]:
        return ([], None) if self._engines is None else self._engines.waits(instance)

    def forget_waits(self, instance: str) -> None:
        """A new process of the instance starts: no request waits for it yet."""
        if self._engines is not None:
            self._engines.forget(instance)

    def refuse_requests(self) -> None:
        """Refuses new requests to engines, so that other replicas get them. Requests in flight continue."""
        self._refusing_since = self._refusing_since or time.monotonic()

    async def let_callers_leave(self) -> None:
        """Waits until callers have had time to receive the refusal."""
        # A request that arrives while its kept connection closes looks as if an engine may have received it.
        if self._refusing_since is not None:
            await asyncio.sleep(self._refusing_since + _REFUSE_S - time.monotonic())

    def _handle(self, head: RequestHead, connection: ServerConnection) -> Handler:
        path = head.path
        if path in (HEALTH_PATH, READY_PATH):
            return self._health(path, connection)
        state = self._journal.host_state
        secret, given = state.proxy_secret, head.named.get(b"authorization", b"")
        known = secret is not None and hmac.compare_digest(given, b"Bearer " + secret.encode())
        if not known and not is_other_secret(state, given, time.time()):
            return refuse(connection, 401, "unauthorized", "Authorization: the proxy's secret is missing or wrong")
        # An operator's reads of this host must not wait for requests to its engines.
        standing = KEY if path.startswith(_ENGINES) else ADMINISTRATOR
        if connection.admit(standing=standing) is not None:
            message = "this worker's agent serves too many requests; try again in a moment"
            return refuse(connection, 503, "overloaded", message)
        if path.startswith(_ENGINES):
            return self._forward(head, connection)
        return self._own(path, head, connection)

    def _own(self, path: bytes, head: RequestHead, connection: ServerConnection) -> Handler:
        if path.startswith(_LOGS) and head.method == b"GET":
            return self._log(head, connection)
        if path == _CACHE and head.method in (b"GET", b"POST"):
            return self._cached_models(head, connection)
        return refuse(connection, 404, "not_found", _NO_SUCH_PATH)

    def _health(self, path: bytes, connection: ServerConnection) -> Handler:
        connected = self._heartbeat.connected
        body = {"status": "ok"} if path == HEALTH_PATH else {"ready": connected}
        connection.answer(200 if connected or path == HEALTH_PATH else 503, (_JSON,), orjson.dumps(body))
        return DROPPED

    def _log(self, head: RequestHead, connection: ServerConnection) -> Handler:
        path, _, query = head.target.decode("latin-1").partition("?")
        instance = unquote(path[len(_LOGS) :])
        reading = partial(self._logs.answer, instance=instance, query=query)
        return StreamedAnswer(connection, reading, failed=_log_failed, stall_s=_LOG_STALL_S)

    def _cached_models(self, head: RequestHead, connection: ServerConnection) -> Handler:
        query = head.target.decode("latin-1").partition("?")[2]
        produce = self._cache.models if head.method == b"GET" else partial(self._cache.prune, query=query)
        return StreamedAnswer(connection, produce, failed=_cache_failed, stall_s=_LOG_STALL_S)

    def _forward(self, head: RequestHead, connection: ServerConnection) -> Handler:
        parsed: tuple[str, bytes] | None = head.alike.get(_TARGET)
        if parsed is None:
            parsed = head.alike[_TARGET] = _parse_target(head.target)
        instance, target = parsed
        if self._refusing_since is not None:
            connection.drain()
            return refuse(connection, 503, "stopping", "this worker's agent is stopping")
        record = _newest_with_port(self._journal, instance)
        if record is None and _will_have_port(self._journal, instance):
            return refuse(connection, 503, "not_running", f"instance {instance} is starting")
        if record is None or record.port is None or self._engines is None:
            message = f"unknown instance {instance}, or an instance without a port"
            return refuse(connection, 404, "not_found", message)
        if record.state != "running":
            return refuse(connection, 503, "not_running", f"instance {instance} is {record.state}")
        return self._engines.forward(head, connection, instance, record.port, target)


def _parse_target(target: bytes) -> tuple[str, bytes]:
    """The instance in a target below `_ENGINES`, and the engine's target."""
    path, mark, query = target[len(_ENGINES) :].partition(b"?")
    name, _, path = path.partition(b"/")
    return unquote(name.decode("latin-1")), b"/" + path + mark + query


class _Malformed:
    def __init__(self) -> None:
        self._log = MalformedLog(_NAME)

    def __call__(self, error: MessageError) -> bytes:
        self._log.note(str(error))
        return error_body(error.code, str(error))


def _log_failed(connection: ServerConnection, error: Exception) -> None:
    """The log could not be read, as with too many open files or a failing disk."""
    log.warning("log not read", error=repr(error))
    refuse(connection, 503, "unavailable", "this worker's agent cannot answer now; try again in a moment")


def _cache_failed(connection: ServerConnection, error: Exception) -> None:
    log.warning("model cache not read", error=repr(error))
    refuse(connection, 503, "unavailable", "this worker's agent cannot read its model cache now; see its log")


def _will_have_port(journal: Journal, instance: str) -> bool:
    """Whether the instance is starting, such as while its model is fetched."""
    return any(r.alive and r.order is not None and r.order.needs_port for r in journal.of(instance))


def _newest_with_port(journal: Journal, instance: str) -> ProcessRecord | None:
    """The instance's newest process with a port, which answers requests."""
    records = [record for record in journal.of(instance) if record.port is not None]
    if len(records) == 1:
        return records[0]
    return max(records, key=lambda record: (record.alive, record.epoch, -record.rank), default=None)
