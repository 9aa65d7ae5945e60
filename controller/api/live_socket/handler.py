"""One socket: reads requests, runs topics, sends in order. Ends with its key, a slow client or the server."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson
import structlog
from aiohttp import WSMessage, WSMsgType, web
from pydantic import ValidationError

from controller.api.body import as_shown
from controller.api.context import PRINCIPAL
from controller.api.errors import ApiError, as_api_error, error_form, invalid
from controller.api.live_socket.topics import TOPICS, Topic
from controller.api.open_streams import OpenStreams
from controller.api.parameters import refuse_unknown
from controller.api.route import Access, Route
from controller.api.streams import SlowClientError, cut, while_taken
from http1.protocol.peer_state import taken_bytes
from http1.rate import Rate
from schemas.api.live import LiveMessage
from schemas.api.requests import LiveRequest
from schemas.manifest.problems import FieldProblem

log = structlog.get_logger(__name__)

PING_S: Final = 10.0
_PING_BYTES: Final = 16  # at most, that a client's kernel acknowledges of a ping
_MOST_QUIET: Final = 3  # pings without an answer, one after the other
CLOSE_LIMIT_S: Final = 1.0
MAX_TOPICS: Final = 16  # of one socket
MAX_OF_KEY: Final = 64  # sockets: a team's dashboards may share a viewer's key
MAX_SOCKETS: Final = 256
MAX_MESSAGE_BYTES: Final = 16 * 2**10  # from the client
_SPACING_S: Final = 0.01  # between two messages of the client, so that a flood leaves time for other requests
OPENS_AT_ONCE: Final = 64  # four times the topics of a socket: a reader leafs through pages of the dashboard
OPENS_PER_S: Final = 8.0  # beyond that; a snapshot costs far more than the message that opens it
_MAX_SHOWN: Final = 80
MAX_WAITING: Final = 64  # messages; beyond that topics wait, each behind a bounded stream of its own
MAX_WAITING_BYTES: Final = 4 * 2**20  # and one message more, of whatever size


def sockets() -> OpenStreams:
    return OpenStreams("live sockets", "too_many_live", of_key=MAX_OF_KEY, total=MAX_SOCKETS)


SOCKETS: Final = web.AppKey("SOCKETS", OpenStreams)


async def live(request: web.Request) -> web.StreamResponse:
    socket = web.WebSocketResponse(timeout=CLOSE_LIMIT_S, max_msg_size=MAX_MESSAGE_BYTES, autoping=False)
    with request.app[SOCKETS].admitted(request[PRINCIPAL].key_id):
        await socket.prepare(request)
        session = _Session(request, socket)
        try:
            await session.run()
        except (SlowClientError, ConnectionError):
            cut(request)
    return socket


class Outbox:
    """The send queue of one socket, in order and bounded: topics wait for space, and a client that stalls is cut."""

    def __init__(self, socket: web.WebSocketResponse, transport: asyncio.BaseTransport | None) -> None:
        self._socket, self._transport = socket, transport
        self._waiting: deque[tuple[int | None, bytes]] = deque()  # with the topic by which they are dropped
        self._bytes = 0  # bytes of those messages, and of the message under way
        self._order = asyncio.Lock()  # keeps the order of the calls while they wait for space
        self._space = asyncio.Event()
        self._some = asyncio.Event()

    async def put(self, id_: int, message: bytes | Callable[[], bytes]) -> None:
        """Queues a JSON object as a topic's message, once there is space.

        A callable makes the message only then, so that large ones do not wait in memory.
        """
        await self._put(id_, message, of=id_)

    async def put_form(self, id_: int | None, **form: Any) -> None:
        """As `put`, but `drop` does not remove it: an end, an error, an answer."""
        await self._put(id_, orjson.dumps(form), of=None)

    async def _put(self, id_: int | None, message: bytes | Callable[[], bytes], *, of: int | None) -> None:
        async with self._order:
            while len(self._waiting) >= MAX_WAITING or self._bytes >= MAX_WAITING_BYTES:
                self._space.clear()
                await self._space.wait()
            body = message if isinstance(message, bytes) else message()
            with_id = b'{"id":%b,%b' % (b"null" if id_ is None else b"%d" % id_, body[1:])
            self._waiting.append((of, with_id))
            self._bytes += len(with_id)
        self._some.set()

    def drop(self, id_: int) -> None:
        """Drops a topic's queued messages. A message that is being sent is completed."""
        self._bytes -= sum(len(message) for of, message in self._waiting if of == id_)
        self._waiting = deque((of, message) for of, message in self._waiting if of != id_)
        self._space.set()

    async def send_all(self) -> None:
        """Sends until cancelled.

        Raises:
            SlowClientError: the client takes too long to read.
        """
        while True:
            while not self._waiting:
                self._some.clear()
                await self._some.wait()
            _, message = self._waiting.popleft()
            await while_taken(self._transport, self._socket.send_frame(message, WSMsgType.TEXT))
            self._bytes -= len(message)  # not before: a message that is being sent takes memory
            self._space.set()


class _Session:
    """An open socket and its topics."""

    def __init__(self, request: web.Request, socket: web.WebSocketResponse) -> None:
        self._request = request
        self._principal = request[PRINCIPAL]
        self._socket = socket
        self._outbox = Outbox(socket, request.transport)
        self._topics: dict[int, asyncio.Task[None]] = {}
        self._heard = True  # since the last ping
        self._now = asyncio.get_running_loop().time
        self._opens = Rate(self._now(), OPENS_AT_ONCE, OPENS_PER_S)

    async def run(self) -> None:
        """Until the client leaves.

        Raises:
            SlowClientError: it does not read, or is silent.
            ConnectionError: the connection is gone.
        """
        parts = [
            asyncio.create_task(self._outbox.send_all(), name="live-send"),
            asyncio.create_task(self._receive_all(), name="live-receive"),
            asyncio.create_task(self._ping(), name="live-ping"),
        ]
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in done:
                part.result()
        finally:
            await _end([*parts, *self._topics.values()])

    async def _ping(self) -> None:
        """Pings the client. A client that acknowledges sent bytes is alive: its pong may wait behind them.

        Raises:
            SlowClientError: it does neither.
        """
        transport, quiet, taken = self._request.transport, 0, 0
        while quiet < _MOST_QUIET:
            await while_taken(transport, self._socket.ping())
            await asyncio.sleep(PING_S)
            before, taken = taken, 0 if transport is None else taken_bytes(transport) or 0
            quiet = 0 if self._heard or taken - before > _PING_BYTES else quiet + 1
            self._heard = False
        raise SlowClientError

    async def _receive_all(self) -> None:
        async for message in self._socket:
            self._heard = True
            await self._receive(message)
            await asyncio.sleep(_SPACING_S)

    async def _receive(self, message: WSMessage) -> None:
        match message.type:
            case WSMsgType.PING:
                await while_taken(self._request.transport, self._socket.pong(message.data))
            case WSMsgType.PONG:
                pass
            case WSMsgType.TEXT:
                await self._execute(message.data)
            case _:
                await self._refuse(None, ApiError(400, "invalid", "message: must be text, a JSON object"))

    async def _execute(self, text: str) -> None:
        try:
            request = LiveRequest.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "message"
            await self._refuse(None, invalid([FieldProblem(where, first["msg"])]))
            return
        match request.op:
            case "open":
                await asyncio.sleep(self._opens.take(self._now(), 1.0))  # later messages wait too
                await self._open(request)
            case "close":
                await self._close(request.id)
            case "ping":
                await self._outbox.put_form(request.id, type="pong")

    async def _open(self, request: LiveRequest) -> None:
        try:
            topic, parameters = self._admit(request)
        except ApiError as error:
            await self._refuse(request.id if request.id not in self._topics else None, error)
            return
        task = asyncio.create_task(self._follow(request.id, topic, parameters), name=f"live-{request.topic}")
        self._topics[request.id] = task

    async def _close(self, id_: int) -> None:
        task = self._topics.get(id_)
        if task is not None:
            await _end([task])
            self._topics.pop(id_, None)
            self._outbox.drop(id_)
            await self._outbox.put_form(id_, type="end", reason="closed")

    def _admit(self, request: LiveRequest) -> tuple[Topic, Mapping[str, str]]:
        topic = TOPICS.get(request.topic)
        if topic is None:
            known = ", ".join(TOPICS)
            raise invalid([FieldProblem("topic", f"must be one of {known}, got {request.topic[:_MAX_SHOWN]!r}")])
        if request.id in self._topics:
            raise ApiError(409, "in_use", f"id {request.id} is open on this socket; close it first, or take another")
        if len(self._topics) >= MAX_TOPICS:
            raise ApiError(429, "too_many_topics", f"{MAX_TOPICS} topics are open on this socket; close some")
        if self._principal.role not in topic.access.value:
            raise ApiError(403, "forbidden", f"role {self._principal.role} is not allowed here")
        parameters = {name: _as_text(value) for name, value in request.params.items() if value is not None}
        refuse_unknown(parameters, *topic.parameters)
        return topic, parameters

    async def _follow(self, id_: int, topic: Topic, parameters: Mapping[str, str]) -> None:
        """Runs a topic to its end. The last message of an id is `end` or `error`; then the id can be used again."""

        async def emit(message: bytes | Callable[[], bytes]) -> None:
            def shown() -> bytes:
                return as_shown(self._request, message if isinstance(message, bytes) else message())

            await self._outbox.put(id_, shown)

        last: dict[str, Any]
        try:
            await topic.follow(self._request, parameters, emit)
            last = {"type": "end", "reason": "finished"}
        except Exception as error:  # a defect of a topic ends it alone
            known = as_api_error(error)
            if known is None:
                log.warning("topic failed", exc_info=error)
            last = {"type": "error", "error": error_form(known or ApiError(500, "internal", "internal error"))}
        await self._outbox.put_form(id_, **last)
        self._topics.pop(id_, None)

    async def _refuse(self, id_: int | None, error: ApiError) -> None:
        await self._outbox.put_form(id_, type="error", error=error_form(error))


def _as_text(value: str | int | bool | list[str]) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case list():
            return ",".join(value)
        case _:
            return str(value)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CLOSE_LIMIT_S)


ROUTES: Final = (
    Route(
        "GET", "/api/v1/live", live, Access.READ, "Follow several topics on one WebSocket", "live", LiveMessage,
        status=101, stream=True,
    ),
)  # fmt: skip
