"""One socket: reads what the client asks, runs its topics, and ends with its key, a slow client or the server."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog
from aiohttp import WSMessage, WSMsgType, web
from pydantic import ValidationError

from controller.api.context import PRINCIPAL
from controller.api.errors import ApiError, as_api_error, error_form, invalid
from controller.api.key_share import KeyShare
from controller.api.live_socket.outbox import Outbox
from controller.api.live_socket.topics import TOPICS, Topic
from controller.api.parameters import refuse_unknown
from controller.api.representation import as_shown
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
_MOST_QUIET: Final = 3  # pings in turn that nothing comes of
CLOSE_LIMIT_S: Final = 1.0
MAX_TOPICS: Final = 16  # of one socket
MAX_OF_KEY: Final = 64  # sockets: a team's dashboards may share a viewer's key
MAX_SOCKETS: Final = 256
MAX_MESSAGE_BYTES: Final = 16 * 2**10  # from the client
_SPACING_S: Final = 0.01  # between two messages of the client, so that a flood leaves the loop to others
OPENS_AT_ONCE: Final = 64  # four times the topics of a socket: a dashboard whose reader leafs through pages
OPENS_PER_S: Final = 8.0  # beyond that; a snapshot costs far more than the message that asks for it
_MAX_SHOWN: Final = 80


def sockets() -> KeyShare:
    """Counts the open sockets."""
    return KeyShare("live sockets", "too_many_live", of_key=MAX_OF_KEY, total=MAX_SOCKETS)


SOCKETS: Final = web.AppKey("SOCKETS", KeyShare)


async def live(request: web.Request) -> web.StreamResponse:
    """`GET /live`."""
    socket = web.WebSocketResponse(timeout=CLOSE_LIMIT_S, max_msg_size=MAX_MESSAGE_BYTES, autoping=False)
    with request.app[SOCKETS].admitted(request[PRINCIPAL].key_id):
        await socket.prepare(request)
        session = _Session(request, socket)
        try:
            await session.run()
        except (SlowClientError, ConnectionError):
            cut(request)
    return socket


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
            SlowClientError: it does not read, or says nothing.
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
        """Asks for a sign of life. A client that takes what is sent has given one: its answer is behind all that.

        Raises:
            SlowClientError: none has come.
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
                await self._obey(message.data)
            case _:
                await self._refuse(None, ApiError(400, "invalid", "message: must be text, a JSON object"))

    async def _obey(self, text: str) -> None:
        try:
            asked = LiveRequest.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "message"
            await self._refuse(None, invalid([FieldProblem(where, first["msg"])]))
            return
        match asked.op:
            case "open":
                await asyncio.sleep(self._opens.take(self._now(), 1.0))  # what comes behind it waits too
                await self._open(asked)
            case "close":
                await self._close(asked.id)
            case "ping":
                await self._outbox.put_form(asked.id, type="pong")

    async def _open(self, asked: LiveRequest) -> None:
        try:
            topic, parameters = self._admit(asked)
        except ApiError as error:
            await self._refuse(asked.id if asked.id not in self._topics else None, error)
            return
        task = asyncio.create_task(self._follow(asked.id, topic, parameters), name=f"live-{asked.topic}")
        self._topics[asked.id] = task

    async def _close(self, id_: int) -> None:
        task = self._topics.get(id_)
        if task is not None:
            await _end([task])
            self._topics.pop(id_, None)
            self._outbox.drop(id_)
            await self._outbox.put_form(id_, type="end", reason="closed")

    def _admit(self, asked: LiveRequest) -> tuple[Topic, Mapping[str, str]]:
        topic = TOPICS.get(asked.topic)
        if topic is None:
            known = ", ".join(TOPICS)
            raise invalid([FieldProblem("topic", f"must be one of {known}, got {asked.topic[:_MAX_SHOWN]!r}")])
        if asked.id in self._topics:
            raise ApiError(409, "in_use", f"id {asked.id} is open on this socket; close it first, or take another")
        if len(self._topics) >= MAX_TOPICS:
            raise ApiError(429, "too_many_topics", f"{MAX_TOPICS} topics are open on this socket; close some")
        if not topic.access.allows(self._principal.role):
            raise ApiError(403, "forbidden", f"role {self._principal.role} is not allowed here")
        parameters = {name: _as_text(value) for name, value in asked.params.items() if value is not None}
        refuse_unknown(parameters, *topic.parameters)
        return topic, parameters

    async def _follow(self, id_: int, topic: Topic, parameters: Mapping[str, str]) -> None:
        """Runs a topic to its end. The last message of an id is `end` or `error`; then the id is free again."""

        async def emit(message: bytes | Callable[[], bytes]) -> None:
            def shown() -> bytes:
                return as_shown(self._request, message if isinstance(message, bytes) else message())

            await self._outbox.put(id_, shown)

        last: dict[str, Any]
        try:
            await topic.follow(self._request, parameters, emit)
            last = {"type": "end", "reason": "finished"}
        except Exception as error:
            known = as_api_error(error)
            if known is None:
                log.warning("topic failed", exc_info=error)
            last = {"type": "error", "error": error_form(known or ApiError(500, "internal", "internal error"))}
        await self._outbox.put_form(id_, **last)
        self._topics.pop(id_, None)

    async def _refuse(self, id_: int | None, error: ApiError) -> None:
        await self._outbox.put_form(id_, type="error", error=error_form(error))


def _as_text(value: str | int | bool | list[str]) -> str:
    """A parameter as a URL's query has it."""
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
