"""The topics of a live socket: each gives the messages of a stream of the API until it ends."""

import codecs
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import aiohttp
import orjson
from aiohttp import web

from controller.api.agent_proxies import AGENT_PROXIES, unreachable
from controller.api.context import CONTEXT, PRINCIPAL
from controller.api.errors import ApiError, invalid
from controller.api.log_access import check_log_access
from controller.api.parameters import flag, whole_number
from controller.api.resources.logs import MAX_TAIL
from controller.api.resources.watch import OBJECTS, PARAMETERS, wanted_of
from controller.api.route import Access
from controller.live.event_feed import PAGE, EventFeed, NewEvents, concerns, event_message
from controller.live.gpu_feed import GpuFeed, Round
from controller.live.shared_feed import Stream
from controller.store.views.events import EventFilter, list_events, objects_named
from controller.store.views.instances import log_source
from schemas.manifest.problems import FieldProblem
from schemas.wire import PROXY_LOGS_PREFIX

GPUS: Final = web.AppKey("GPUS", GpuFeed)
EVENTS: Final = web.AppKey("EVENTS", EventFeed)
OPENED: Final = b'{"type":"opened"}'
_LOG_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=None)  # a log may stay quiet
_OK: Final = 200
_NOT_FOUND: Final = 404
_MAX_ID: Final = 2**63 - 1

Parameters = Mapping[str, str]
Emit = Callable[[bytes], Awaitable[None]]
Follow = Callable[[web.Request, Parameters, Emit], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Topic:
    """One kind of stream.

    Attributes:
        follow: emits the messages until the stream ends; raises what the route of the same data would answer.
        access: the roles that may open it, as of that route.
        parameters: that it takes.
    """

    follow: Follow
    access: Access
    parameters: tuple[str, ...] = ()


async def feeds_context(app: web.Application) -> AsyncIterator[None]:
    """Holds what the topics of all sockets share, and ends it with the app."""
    database = app[CONTEXT].database
    gpus, events = app[GPUS], app[EVENTS] = GpuFeed(database), EventFeed(database)
    try:
        yield
    finally:
        await gpus.stop()
        await events.stop()


async def objects(request: web.Request, parameters: Parameters, emit: Emit) -> None:
    """The messages of `GET /watch`."""
    async with request.app[OBJECTS].watch(request[PRINCIPAL].key_id, wanted_of(parameters)) as stream:
        await emit(stream.snapshot)
        stream.snapshot = b""  # as long as the topic
        while True:
            for batch in await stream.take():
                for message in batch.messages(stream.wanted):
                    await emit(message)


async def gpus(request: web.Request, _parameters: Parameters, emit: Emit) -> None:
    """Figures of all GPUs, then rounds of those that have changed."""
    stream: Stream[Round] = Stream()
    async with request.app[GPUS].attached(stream):
        await emit(stream.snapshot)
        stream.snapshot = b""
        while True:
            for one in await stream.take():
                await emit(one.message)


async def events(request: web.Request, parameters: Parameters, emit: Emit) -> None:
    """Events from now on, or after the one with the id `since`: at most the newest `PAGE` of those before now."""
    since = whole_number(parameters, "since", low=0, high=_MAX_ID)
    deployment = parameters.get("deployment")
    stream: Stream[NewEvents] = Stream()
    async with request.app[EVENTS].attached(stream):
        async with request.app[
            CONTEXT
        ].database.snapshot() as connection:  # after the stream has begun: nothing falls between
            names = await objects_named(connection, "deployment", deployment) if deployment else []
            about = [[*names, f"deployment:{deployment}"]] if deployment else []
            wanted = EventFilter(about=about, since_id=since)
            page = None if since is None else await list_events(connection, limit=PAGE, wanted=wanted)
        await emit(OPENED)
        earlier = [] if page is None else page.items[::-1]
        for event in earlier:
            await emit(event_message(event))
        sent = {event.id for event in earlier}
        while True:
            for batch in await stream.take():
                for event, message in batch.events:
                    if event.id not in sent and concerns(event, deployment, names):
                        await emit(message)


async def logs(request: web.Request, parameters: Parameters, emit: Emit) -> None:
    """The log of an instance, followed: text as it comes. It ends with the process."""
    check_log_access(request)
    app, instance = request.app, parameters.get("instance")
    if not instance:
        raise invalid([FieldProblem("instance", "name an instance; `gpuward ps` lists them")])
    tail = whole_number(parameters, "tail", low=0, high=MAX_TAIL)
    query = {"follow": "1"} | ({"previous": "1"} if flag(parameters, "previous") else {})
    async with app[CONTEXT].database.snapshot() as connection:
        source = await log_source(connection, instance)
    if source is None:
        raise ApiError(409, "not_started", f"instance {instance!r} has not started yet, so it has no log")
    if not source.address:
        raise unreachable(source)
    url = f"http://{source.address}{PROXY_LOGS_PREFIX}/{instance}"
    headers = {"Authorization": f"Bearer {source.secret}"}
    asked = query | ({} if tail is None else {"tail": str(tail)})
    try:
        async with app[AGENT_PROXIES].get(url, params=asked, headers=headers, timeout=_LOG_TIMEOUT) as answer:
            if answer.status == _NOT_FOUND:
                raise ApiError(404, "no_log", f"worker {source.worker!r} keeps no such log of {instance!r}")
            if answer.status != _OK:
                raise unreachable(source)
            await emit(OPENED)
            decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a chunk may end within a character
            async for chunk in answer.content.iter_any():
                if text := decoder.decode(chunk):
                    await emit(orjson.dumps({"type": "log", "text": text}))
    except (aiohttp.ClientError, TimeoutError) as error:
        raise unreachable(source) from error


TOPICS: Final[Mapping[str, Topic]] = {
    "objects": Topic(objects, Access.READ, PARAMETERS),
    "gpus": Topic(gpus, Access.READ),
    "events": Topic(events, Access.READ, ("since", "deployment")),
    "logs": Topic(logs, Access.READ, ("instance", "tail", "previous")),
}
