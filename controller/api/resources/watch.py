"""Watch: a snapshot of deployments, instances and workers, then every change, as server-sent events. No resume."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from controller.api.body import as_shown
from controller.api.context import CONTEXT, PRINCIPAL
from controller.api.errors import invalid
from controller.api.open_streams import OpenStreams
from controller.api.parameters import parameters_of
from controller.api.route import Access, Query, Route
from controller.api.streams import SlowClientError, cut, write
from controller.live.errors import WatchEndedError
from controller.live.object_feed import ObjectFeed, ObjectStream, Wanted
from controller.live.objects import DEFAULT_KINDS, LISTS, frame
from schemas.api.live import WatchEvent
from schemas.manifest.problems import FieldProblem

HEARTBEAT_S: Final = 10.0
OBJECTS: Final = web.AppKey("OBJECTS", ObjectFeed)
WATCHES: Final = web.AppKey("WATCHES", OpenStreams)
_WATCHES_OF_KEY: Final = 64  # so that a key cannot take all of them
_MOST_WATCHES: Final = 256
PARAMETERS: Final = ("kinds", "deployment")
_HEADERS: Final = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def feed_context(app: web.Application) -> AsyncIterator[None]:
    context = app[CONTEXT]
    feed = app[OBJECTS] = ObjectFeed(context.database, context.changes, context.known_secrets.redaction)
    app[WATCHES] = OpenStreams("watches", "too_many_watches", of_key=_WATCHES_OF_KEY, total=_MOST_WATCHES)
    try:
        yield
    finally:
        await feed.stop()


def wanted_of(parameters: Mapping[str, str]) -> Wanted:
    """Raises `ApiError`: 400."""
    text = parameters.get("kinds")
    kinds = DEFAULT_KINDS if text is None else frozenset(text.split(","))
    if unknown := sorted(kinds - set(LISTS.values())):
        known = ", ".join(LISTS.values())
        raise invalid([FieldProblem("kinds", f"must be some of {known}, separated by commas, got {unknown[0][:40]!r}")])
    return Wanted(kinds, parameters.get("deployment"))


@asynccontextmanager
async def admitted_watch(request: web.Request, wanted: Wanted) -> AsyncIterator[ObjectStream]:
    """A watcher's stream, which counts as a watch of the caller's key.

    Raises:
        ApiError: 429 or 503: too many watches.
        WatchEndedError: the objects cannot be read.
    """
    with request.app[WATCHES].admitted(request[PRINCIPAL].key_id):
        async with request.app[OBJECTS].watch(wanted) as stream:
            yield stream


async def watch(request: web.Request) -> web.StreamResponse:
    """Streams until the client disconnects or is too slow, or the server stops."""
    wanted = wanted_of(parameters_of(request))
    async with admitted_watch(request, wanted) as stream:
        response = web.StreamResponse(headers=_HEADERS)
        await response.prepare(request)
        try:
            await write(response, as_shown(request, frame(stream.snapshot())), request.transport)
            await _follow(stream, response, request)
        except (SlowClientError, WatchEndedError, ConnectionError):
            cut(request)
    return response


async def _follow(stream: ObjectStream, response: web.StreamResponse, request: web.Request) -> None:
    while True:
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                batches = await stream.take()
        except TimeoutError:
            await write(response, b": still here\n\n", request.transport)
            continue
        if frames := b"".join(batch.frames(stream.wanted) for batch in batches):
            await write(response, as_shown(request, frames), request.transport)


_QUERY: Final = (
    Query("kinds", f"some of {', '.join(LISTS.values())}, separated by commas (default: all but policies)"),
    Query("deployment", "of deployments and instances only those of the deployment of this name"),
)
ROUTES: Final = (
    Route(
        "GET", "/api/v1/watch", watch, Access.READ, "Follow deployments, instances and workers (server-sent events)",
        "watch", WatchEvent, query=_QUERY, media="text/event-stream", stream=True,
    ),
)  # fmt: skip
