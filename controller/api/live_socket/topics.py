"""The topics of a live socket: each gives the messages of a stream of the API until it ends."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from controller.api.context import CONTEXT, PRINCIPAL
from controller.api.live_socket.log_topic import LOG_PARAMETERS, OPENED, Emit, Parameters, logs
from controller.api.parameters import whole_number
from controller.api.resources.watch import OBJECTS, PARAMETERS, wanted_of
from controller.api.route import Access
from controller.live.event_feed import PAGE, EventFeed, NewEvents, concerns, event_message
from controller.live.gpu_feed import GpuFeed, Round
from controller.live.shared_feed import Stream
from controller.store.core.database import Database
from controller.store.views.events import EventFilter, list_events, objects_named

GPUS: Final = web.AppKey("GPUS", GpuFeed)
EVENTS: Final = web.AppKey("EVENTS", EventFeed)
_MAX_ID: Final = 2**63 - 1

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
        while True:
            for batch in await stream.take():
                for message in batch.messages(stream.wanted):
                    await emit(message)


async def gpus(request: web.Request, _parameters: Parameters, emit: Emit) -> None:
    """Figures of all GPUs, then rounds of those that have changed."""
    stream: Stream[Round] = Stream()
    async with request.app[GPUS].attached(stream):
        await emit(stream.snapshot)
        while True:
            for one in await stream.take():
                await emit(one.message)


async def events(request: web.Request, parameters: Parameters, emit: Emit) -> None:
    """Events from now on, or after the one with the id `since`: at most the newest `PAGE` of those before now."""
    since = whole_number(parameters, "since", low=0, high=_MAX_ID)
    deployment, redaction = parameters.get("deployment"), request.app[CONTEXT].known_secrets.redaction
    stream: Stream[NewEvents] = Stream()
    async with request.app[EVENTS].attached(stream):
        stream.snapshot()  # empty; all that comes from here on is followed
        names, earlier = await _events_before(request.app[CONTEXT].database, deployment, since)
        await emit(OPENED)
        sent = set(earlier)
        for message in earlier.values():
            await emit(redaction().shown(message))
        earlier.clear()  # the topic may last
        while True:
            for batch in await stream.take():
                for one in batch.events:
                    if one.event.id not in sent and concerns(one.event, deployment, names):
                        await emit(one.shown(redaction()))


async def _events_before(
    database: Database, deployment: str | None, since: int | None
) -> tuple[list[str], dict[int, bytes]]:
    """How events name a deployment and its instances, and the messages of the events so far, by id in order."""
    async with database.snapshot() as connection:
        names = await objects_named(connection, "deployment", deployment) if deployment else []
        if since is None:
            return names, {}
        about = [[*names, f"deployment:{deployment}"]] if deployment else []
        page = await list_events(connection, limit=PAGE, wanted=EventFilter(about=about, since_id=since))
    return names, {event.id: event_message(event) for event in reversed(page.items)}


TOPICS: Final[Mapping[str, Topic]] = {
    "objects": Topic(objects, Access.READ, PARAMETERS),
    "gpus": Topic(gpus, Access.READ),
    "events": Topic(events, Access.READ, ("since", "deployment")),
    "logs": Topic(logs, Access.READ, LOG_PARAMETERS),
}
