"""What the gateway answers for itself and the controller: whether both are alive and ready, and their metrics.

`?exclude=controller` leaves the controller out of the first two: models answer while it is away.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs

import orjson
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from gateway.control_plane.reverse_proxy import Controller
from gateway.errors import response, unavailable
from gateway.routing.live_routes import LiveRoutes
from http1.fetch import FetchError
from http1.forwarded import is_from_this_host
from http1.protocol.handler import Handler
from http1.protocol.heads import Fields, RequestHead
from http1.protocol.server_connection import ServerConnection
from http1.protocol.streamed_answer import StreamedAnswer

MAX_LOOP_LAG_S: Final = 5.0
HEALTH: Final = b"/healthz"
READY: Final = b"/readyz"
METRICS: Final = b"/metrics"
_LIMIT_S: Final = 6.0  # the controller's own checks have shorter ones
_METRICS_LIMIT_S: Final = 30.0
_STALL_S: Final = 30.0
_OK: Final = 200
_KEPT_S: Final = 0.2  # for which states of other processes are kept
_STATE: Final = "state"
_EXPOSITION: Final = "metrics"
_CONTROLLER: Final = "controller"  # a check's name
_JSON: Final = (b"content-type", b"application/json; charset=utf-8")
_CREDENTIALS: Final = frozenset((b"authorization", b"x-api-key", b"api-key", b"cookie"))

Answers = Callable[[RequestHead, Fields, StreamedAnswer], Awaitable[None]]
Ask = Callable[[str], Awaitable[Mapping[int, bytes | None]]]


async def no_reader(_head: RequestHead) -> bool:
    """Grants no request the messages of checks."""
    return False


async def alone(_question: str) -> Mapping[int, bytes | None]:
    """The answers of the other processes where this is the only one."""
    return {}


class Health:
    """Answers the three paths for the controller and for all processes of this gateway.

    Args:
        routes: the replicas; without a first read the gateway is not ready.
        loop_lag_s: the event loop's recent lag, in seconds.
        registry: the metrics of this process.
        others: queries the other processes; see `answers`.
        certificate: the problem of the certificate, which serves nevertheless; empty without one.
        reader: whether a request has a key that may read the messages of checks.
    """

    def __init__(
        self,
        controller: Controller,
        routes: LiveRoutes,
        *,
        draining: Callable[[], bool],
        loop_lag_s: Callable[[], float],
        registry: CollectorRegistry,
        number: int = 0,
        others: Ask = alone,
        certificate: Callable[[], str] = lambda: "",
        reader: Callable[[RequestHead], Awaitable[bool]] = no_reader,
    ) -> None:
        self._controller = controller
        self._routes = routes
        self._draining = draining
        self._loop_lag_s = loop_lag_s
        self._registry = registry
        self._number = number
        self._others = others
        self._certificate = certificate
        self._reader = reader
        self._asking = asyncio.Lock()
        self._polled_at = -math.inf
        self._kept: Mapping[int, bytes | None] = {}

    def answers(self) -> dict[str, Callable[[], Awaitable[bytes]]]:
        """The answers of this process to other processes, by question."""
        return {_STATE: self._own_state, _EXPOSITION: self._exposition}

    def handle(self, head: RequestHead, connection: ServerConnection, request_id: str) -> Handler:
        ready = partial(self._ready, address=connection.address)
        answers: dict[bytes, Answers] = {HEALTH: self._alive, READY: ready, METRICS: self._metrics}
        answer = answers[head.path]
        fields = [(b"x-request-id", request_id.encode())]

        def failed(failed_on: ServerConnection, error: Exception) -> None:
            known, body = response(unavailable(f"not answered: {error}"), head.path, request_id)
            failed_on.answer(503, [*known, *fields], body)

        return StreamedAnswer(connection, partial(answer, head, fields), failed=failed, stall_s=_STALL_S)

    async def _alive(self, head: RequestHead, fields: Fields, answer: StreamedAnswer) -> None:
        """The controller's answer, unless a process is worse."""
        controller = _alone(status="ok") if _leaves_out_controller(head.target) else self._of_controller(HEALTH)
        (status, body), states = await asyncio.gather(controller, self._states())
        lag_s = max(state["lag_s"] for state in states.values() if state is not None)
        silent = None in states.values()
        if body is None or silent or lag_s > MAX_LOOP_LAG_S:
            word = "controller_unreachable" if body is None else "process_silent" if silent else "lagging"
            status, body = 503, {"status": word, "loop_lag_s": round(lag_s, 3)}
        await _send(answer, status, fields, body)

    async def _ready(self, head: RequestHead, fields: Fields, answer: StreamedAnswer, address: str = "") -> None:
        """All checks of the controller, and one of the gateway; a stranger gets their names without their messages."""
        status, checks, states = 503, None, {self._number: self._state()}
        if not self._draining():
            controller = (
                _alone(ready=True) if _leaves_out_controller(head.target) else self._of_controller(head.target, head)
            )
            (status, checks), states = await asyncio.gather(controller, self._states())
        unreachable: dict[str, Any] = {"ready": False, "checks": {_CONTROLLER: {"ok": False, "message": "no answer"}}}
        body = unreachable if checks is None else checks
        problem = _problem(states)
        checks = body.setdefault("checks", {})
        checks["gateway"] = {"ok": not problem, "message": problem}
        if message := self._certificate():
            checks["gateway_certificate"] = {"ok": True, "message": message}
        if problem:
            status, body["ready"] = 503, False
        if not await self._may_read_messages(head, address):
            body = {"ready": body.get("ready"), "checks": {name: _without_message(checks[name]) for name in checks}}
        await _send(answer, status, fields, body)

    async def _may_read_messages(self, head: RequestHead, address: str) -> bool:
        """Messages name addresses, versions and errors: they are for this host, and for who may read all."""
        names = (name.decode("latin-1") for name, _ in head.fields)
        return is_from_this_host(address, names) or await self._reader(head)

    async def _metrics(self, head: RequestHead, fields: Fields, answer: StreamedAnswer) -> None:
        """The controller's, which checks the key, followed by the gateway's."""
        credentials = [(name, value) for name, value in head.fields if name == b"authorization"]
        try:
            got, body = await self._controller.fetch(METRICS, [*credentials, *fields], _METRICS_LIMIT_S)
        except FetchError as error:
            raise ConnectionError(f"the controller gave no metrics: {error}") from error
        kept = [(b"content-type", got.named.get(b"content-type", b"")), *fields]
        challenge = got.named.get(b"www-authenticate")
        if challenge:
            kept.append((b"www-authenticate", challenge))
        if got.status == _OK:
            body += await self._all_metrics()
        answer.start(got.status, kept)
        await answer.send(body)

    async def _all_metrics(self) -> bytes:
        """The metrics of all processes; those of a single process have no label for it."""
        own, others = await asyncio.gather(self._exposition(), self._others(_EXPOSITION))
        if not others:
            return own
        answered = {number: text for number, text in {self._number: own, **others}.items() if text is not None}
        return await asyncio.to_thread(
            joined, {str(number + 1): answered[number].decode() for number in sorted(answered)}
        )

    async def _exposition(self) -> bytes:
        return await asyncio.to_thread(generate_latest, self._registry)

    def _state(self) -> dict[str, Any]:
        problem = self._routes.problem
        if self._draining():
            problem = "the gateway is stopping"
        return {"lag_s": self._loop_lag_s(), "problem": problem}

    async def _own_state(self) -> bytes:
        return orjson.dumps(self._state())

    async def _states(self) -> dict[int, dict[str, Any] | None]:
        """The state of each process, by number; None without an answer."""
        loop = asyncio.get_running_loop()
        async with self._asking:  # requests need no key: one query of the other processes at a time
            if loop.time() - self._polled_at >= _KEPT_S:
                self._kept = await self._others(_STATE)
                self._polled_at = loop.time()
        states = {number: None if text is None else orjson.loads(text) for number, text in self._kept.items()}
        return {self._number: self._state(), **states}

    async def _of_controller(self, target: bytes, head: RequestHead | None = None) -> tuple[int, dict[str, Any] | None]:
        """The controller's status and JSON answer; None without one. `head`: has the client's key."""
        given = [] if head is None else [(name, value) for name, value in head.fields if name in _CREDENTIALS]
        try:
            got, body = await self._controller.fetch(target, given, _LIMIT_S)
            parsed = orjson.loads(body)
        except (FetchError, orjson.JSONDecodeError):
            return 503, None
        return got.status, parsed if isinstance(parsed, dict) else None


def _leaves_out_controller(target: bytes) -> bool:
    """Whether the question is about this gateway alone."""
    query = parse_qs(target.partition(b"?")[2].decode("latin-1"))
    return _CONTROLLER in ",".join(query.get("exclude", ())).split(",")


async def _alone(**body: Any) -> tuple[int, dict[str, Any] | None]:
    """In place of a controller's answer."""
    return _OK, body


async def _send(answer: StreamedAnswer, status: int, fields: Fields, body: dict[str, Any]) -> None:
    answer.start(status, [_JSON, *fields])
    await answer.send(orjson.dumps(body))


def _without_message(check: object) -> dict[str, Any]:
    return {"ok": isinstance(check, dict) and check.get("ok") is True, "message": ""}


def _problem(states: Mapping[int, dict[str, Any] | None]) -> str:
    """Why the gateway is not ready; empty: it is. Among several processes each problem names its own."""
    problems = {
        number: "it does not answer" if state is None else state["problem"] for number, state in sorted(states.items())
    }
    if len(states) == 1:
        return next(iter(problems.values()))
    return "; ".join(f"process {number + 1}: {problem}" for number, problem in problems.items() if problem)


def joined(expositions: Mapping[str, str]) -> bytes:
    """One exposition of several by process, of which each sample has the label `process`."""
    # Counters are not added up: a sum would fall with the process that restarts.
    families: dict[str, Metric] = {}
    for process, text in expositions.items():
        for family in text_string_to_metric_families(text):
            joint = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                joint.samples.append(sample._replace(labels={**sample.labels, "process": process}))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Given(families.values()))
    return generate_latest(registry)


class _Given(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = tuple(metrics)

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)
