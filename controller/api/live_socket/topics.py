"""The topics of a live socket. Each emits the messages of one stream of the API until the stream ends."""

import codecs
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import orjson
from aiohttp import web

from controller.api.agent_proxies import AGENT_PROXIES
from controller.api.audit_trail import check_log_access, note_log_read
from controller.api.context import CONTEXT, PRINCIPAL
from controller.api.errors import invalid
from controller.api.merged_logs.finder import MOST_RANK, LogFinder, agent_query
from controller.api.merged_logs.frames import Line, LogItem, as_object
from controller.api.merged_logs.merge import Key, Merge
from controller.api.parameters import integer
from controller.api.resources.logs import FOLLOWED, MERGES, opened_log, source_of
from controller.api.resources.watch import PARAMETERS, admitted_watch, wanted_of
from controller.api.route import Access
from controller.live.event_feed import PAGE, EventFeed, NewEvents, concerns, event_message
from controller.live.gpu_feed import GpuFeed, Round
from controller.live.shared_feed import Stream
from controller.store.core.database import Database
from controller.store.views.events import EventFilter, list_events, objects_named
from controller.store.views.logs import DeploymentLogs
from schemas.manifest.problems import FieldProblem

GPUS: Final = web.AppKey("GPUS", GpuFeed)
EVENTS: Final = web.AppKey("EVENTS", EventFeed)
_MAX_ID: Final = 2**63 - 1
OPENED: Final = b'{"type":"opened"}'
_OF_INSTANCE: Final = ("instance", "tail", "previous")
_OF_DEPLOYMENT: Final = ("deployment", "instance", "rank", "tail", "since", "after")
LOG_PARAMETERS: Final = tuple(dict.fromkeys((*_OF_INSTANCE, *_OF_DEPLOYMENT)))
_AFTER_FIELDS: Final = 5
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_MAX_SHOWN: Final = 80

Parameters = Mapping[str, str]
Emit = Callable[[bytes | Callable[[], bytes]], Awaitable[None]]
Follow = Callable[[web.Request, Parameters, Emit], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Topic:
    """One kind of stream.

    Attributes:
        follow: emits the messages until the stream ends; raises the errors of the route of the same data.
        access: the roles that may subscribe, as for that route.
    """

    follow: Follow
    access: Access
    parameters: tuple[str, ...] = ()


async def feeds_context(app: web.Application) -> AsyncIterator[None]:
    database = app[CONTEXT].database
    gpus, events = app[GPUS], app[EVENTS] = GpuFeed(database), EventFeed(database)
    try:
        yield
    finally:
        await gpus.stop()
        await events.stop()


async def objects(request: web.Request, parameters: Parameters, emit: Emit) -> None:
    """The messages of `GET /watch`."""
    async with admitted_watch(request, wanted_of(parameters)) as stream:
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
            for round_ in await stream.take():
                await emit(round_.message)


async def events(request: web.Request, parameters: Parameters, emit: Emit) -> None:
    """Events from now on, or after the id `since`: then at most the newest `PAGE` of the earlier events."""
    since = integer(parameters, "since", low=0, high=_MAX_ID)
    deployment, redaction = parameters.get("deployment"), request.app[CONTEXT].known_secrets.redaction
    stream: Stream[NewEvents] = Stream()
    async with request.app[EVENTS].attached(stream):
        stream.snapshot()  # empty; later events are followed
        names, earlier = await _events_before(request.app[CONTEXT].database, deployment, since)
        await emit(OPENED)
        sent = set(earlier)
        for message in earlier.values():
            await emit(redaction().shown(message))
        earlier.clear()  # the topic may last
        while True:
            for batch in await stream.take():
                for new in batch.events:
                    if new.event.id not in sent and concerns(new.event, deployment, names):
                        await emit(new.shown(redaction()))


async def _events_before(
    database: Database, deployment: str | None, since: int | None
) -> tuple[list[str], dict[int, bytes]]:
    """The names of a deployment and its instances in events, and the messages of the events so far, by id in order."""
    async with database.snapshot() as connection:
        names = await objects_named(connection, "deployment", deployment) if deployment else []
        if since is None:
            return names, {}
        about = [[*names, f"deployment:{deployment}"]] if deployment else []
        page = await list_events(connection, limit=PAGE, wanted=EventFilter(about=about, since_id=since))
    return names, {event.id: event_message(event) for event in reversed(page.items)}


async def logs(request: web.Request, parameters: Parameters, emit: Emit) -> None:
    """Follows logs. An instance's log ends with its process, a deployment's logs end with the deployment."""
    merged = "deployment" in parameters
    check_log_access(request, _object(parameters))
    known = _OF_DEPLOYMENT if merged else _OF_INSTANCE
    form = "with `deployment`" if merged else "without `deployment`"
    if wrong := [name for name in parameters if name not in known]:
        raise invalid([FieldProblem(name, f"is not known {form}; use {', '.join(known)}") for name in wrong])
    await (_merged if merged else _of_instance)(request, parameters, emit)


def _object(parameters: Parameters) -> str:
    """The name in the audit log."""
    kind, name = ("deployments", "deployment") if "deployment" in parameters else ("instances", "instance")
    return f"{kind}/{parameters.get(name, '')}/logs"


async def _of_instance(request: web.Request, parameters: Parameters, emit: Emit) -> None:
    instance = parameters.get("instance")
    if not instance:
        raise invalid([FieldProblem("instance", "name an instance; `gpuward ps` lists them")])
    query = agent_query({**parameters, "follow": "true"})
    source = await source_of(request, instance)
    with request.app[FOLLOWED].admitted(request[PRINCIPAL].key_id):
        async with opened_log(request, source, instance, query) as answer:
            await emit(OPENED)
            decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a chunk may end within a character
            async for chunk in answer.content.iter_any():
                if text := decoder.decode(chunk):
                    await emit(orjson.dumps({"type": "log", "text": text}))


async def _merged(request: web.Request, parameters: Parameters, emit: Emit) -> None:
    rank = integer(parameters, "rank", low=0, high=MOST_RANK)
    instances = [name for name in parameters.get("instance", "").split(",") if name]
    query = agent_query({**parameters, "follow": "true"}, timed=True)
    after = read_after(parameters.get("after", ""))
    finder = LogFinder(request.app[CONTEXT].database, parameters["deployment"], instances, rank)
    announced: set[Key] | None = None

    async def announce(present: DeploymentLogs) -> DeploymentLogs:
        """Emits the list of followed logs if it has changed. A deployment that exists may get other instances."""
        nonlocal announced
        keys = {(log.instance, log.rank, log.epoch) for log in present.logs}
        if keys != announced:
            announced = keys
            sources = [{"instance": log.instance, "rank": log.rank, "epoch": log.epoch} for log in present.logs]
            await emit(orjson.dumps({"type": "sources", "sources": sources}))
        return DeploymentLogs(present.logs, present.lives or (present.exists and not instances), present.exists)

    async def refresh() -> DeploymentLogs:
        return await announce(await finder.again())

    async def emit_items(items: list[LogItem]) -> None:
        await emit(orjson.dumps({"type": "lines", "items": [as_object(*item) for item in items]}))

    with request.app[MERGES].admitted(request[PRINCIPAL].key_id):
        present = await finder.first()
        earlier = await finder.earlier(after, present.logs)
        note_log_read(request, _object(parameters))
        await emit(OPENED)
        followed = (await announce(present)).logs
        await Merge(request.app[AGENT_PROXIES], query, emit_items, refresh, after).run((*earlier, *followed))


def read_after(text: str) -> dict[Key, Line]:
    """Reads the last lines that a client has: `INSTANCE/RANK/EPOCH/POSITION/MILLISECONDS`, separated by commas.

    Raises:
        ApiError: 400, an entry is not of this form.
    """
    lines: dict[Key, Line] = {}
    for entry in filter(None, text.split(",")):
        instance, *numbers = entry.split("/")
        if len(numbers) != _AFTER_FIELDS - 1 or not all(map(_NUMBER.fullmatch, numbers)):
            form = "must be INSTANCE/RANK/EPOCH/POSITION/MILLISECONDS of the last line of each log"
            raise invalid([FieldProblem("after", f"{form}, got {entry[:_MAX_SHOWN]!r}")])
        rank, epoch, position, at_ms = map(int, numbers)
        lines[instance, rank, epoch] = Line(b"", at_ms=at_ms, position=position)
    return lines


TOPICS: Final[Mapping[str, Topic]] = {
    "objects": Topic(objects, Access.READ, PARAMETERS),
    "gpus": Topic(gpus, Access.READ),
    "events": Topic(events, Access.READ, ("since", "deployment")),
    "logs": Topic(logs, Access.READ, LOG_PARAMETERS),
}
