"""What the gateway answers for itself and the controller: whether both are alive and ready, and their metrics."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import orjson
from prometheus_client import CollectorRegistry, generate_latest

from gateway.errors import response, unavailable
from gateway.fetch import FetchError, fetch
from gateway.live_routes import LiveRoutes
from gateway.pass_on import Controller
from http1.handler import Handler
from http1.head import Fields, RequestHead
from http1.server_connection import ServerConnection
from http1.streamed_answer import StreamedAnswer

MAX_LOOP_LAG_S: Final = 5.0
HEALTH: Final = b"/healthz"
READY: Final = b"/readyz"
METRICS: Final = b"/metrics"
_LIMIT_S: Final = 6.0  # the controller's own checks have shorter ones
_METRICS_LIMIT_S: Final = 30.0
_STALL_S: Final = 30.0
_OK: Final = 200
_JSON: Final = (b"content-type", b"application/json; charset=utf-8")


class Health:
    """Answers the three paths.

    Args:
        controller: which is asked each time.
        routes: the replicas; without a first read the gateway is not ready.
        draining: whether the gateway is about to stop.
        loop_lag_s: the event loop's recent lag, in seconds.
        registry: the gateway's metrics.
    """

    def __init__(
        self,
        controller: Controller,
        routes: LiveRoutes,
        *,
        draining: Callable[[], bool],
        loop_lag_s: Callable[[], float],
        registry: CollectorRegistry,
    ) -> None:
        self._controller = controller
        self._routes = routes
        self._draining = draining
        self._loop_lag_s = loop_lag_s
        self._registry = registry

    def handle(self, head: RequestHead, connection: ServerConnection, request_id: str) -> Handler:
        """Answers `GET` of one of the three paths."""
        answer = {HEALTH: self._alive, READY: self._ready, METRICS: self._metrics}[head.path]
        fields = [(b"x-request-id", request_id.encode())]

        def failed(failed_on: ServerConnection, error: Exception) -> None:
            known, body = response(unavailable(f"not answered: {error}"), head.path, request_id)
            failed_on.answer(503, [*known, *fields], body)

        return StreamedAnswer(connection, partial(answer, head, fields), failed=failed, stall_s=_STALL_S)

    async def _alive(self, head: RequestHead, fields: Fields, answer: StreamedAnswer) -> None:
        """The controller's answer, unless this process is worse."""
        status, body = await self._asked(head)
        lag_s = self._loop_lag_s()
        if body is None or lag_s > MAX_LOOP_LAG_S:
            word = "lagging" if body is not None else "controller_unreachable"
            status, body = 503, {"status": word, "loop_lag_s": round(lag_s, 3)}
        await _send(answer, status, fields, body)

    async def _ready(self, head: RequestHead, fields: Fields, answer: StreamedAnswer) -> None:
        """All checks of the controller, and one of the gateway."""
        status, found = 503, None
        if not self._draining():
            status, found = await self._asked(head)
        unreachable: dict[str, Any] = {"ready": False, "checks": {"controller": {"ok": False, "message": "no answer"}}}
        body = unreachable if found is None else found
        problem = "" if self._routes.known else "no model is known yet"
        if self._draining():
            problem = "the gateway is stopping"
        body.setdefault("checks", {})["gateway"] = {"ok": not problem, "message": problem}
        if problem:
            status, body["ready"] = 503, False
        await _send(answer, status, fields, body)

    async def _metrics(self, head: RequestHead, fields: Fields, answer: StreamedAnswer) -> None:
        """The controller's, which checks the key, followed by the gateway's."""
        asked = [(name, value) for name, value in head.fields if name == b"authorization"]
        try:
            got, body = await fetch(self._controller, METRICS, [*asked, *fields], _METRICS_LIMIT_S)
        except FetchError as error:
            raise ConnectionError(f"the controller gave no metrics: {error}") from error
        kept = [(b"content-type", got.named.get(b"content-type", b"")), *fields]
        challenge = got.named.get(b"www-authenticate")
        if challenge:
            kept.append((b"www-authenticate", challenge))
        if got.status == _OK:
            body += await asyncio.to_thread(generate_latest, self._registry)
        answer.start(got.status, kept)
        await answer.send(body)

    async def _asked(self, head: RequestHead) -> tuple[int, dict[str, Any] | None]:
        """The controller's status and its answer as JSON; None where it gives none."""
        try:
            got, body = await fetch(self._controller, head.path, [], _LIMIT_S)
            found = orjson.loads(body)
        except (FetchError, orjson.JSONDecodeError):
            return 503, None
        return got.status, found if isinstance(found, dict) else None


async def _send(answer: StreamedAnswer, status: int, fields: Fields, body: dict[str, Any]) -> None:
    answer.start(status, [_JSON, *fields])
    await answer.send(orjson.dumps(body))
