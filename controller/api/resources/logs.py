"""Logs of an instance: an engine's output, streamed from its worker's agent."""

from typing import Final

import aiohttp
from aiohttp import web

from controller.api.agent_proxies import AGENT_PROXIES, unreachable
from controller.api.context import CONTEXT
from controller.api.errors import ApiError
from controller.api.parameters import flag, known_parameters, whole_number
from controller.api.route import Access, Query, Route
from controller.api.streams import SlowClientError, cut, write
from controller.store.views.instances import log_source
from schemas.wire import PROXY_LOGS_PREFIX

MAX_TAIL: Final = 1_000_000
_FOLLOW_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=None)  # a log may stay quiet
_OK: Final = 200
_NOT_FOUND: Final = 404


async def get(request: web.Request) -> web.StreamResponse:
    """`GET /instances/{id}/logs?tail=&follow=&previous=`."""
    parameters = known_parameters(request, "tail", "follow", "previous")
    tail = whole_number(parameters, "tail", low=0, high=MAX_TAIL)
    query = {
        name: "1" for name in ("follow", "previous") if flag(parameters, name)
    } | ({} if tail is None else {"tail": str(tail)})  # fmt: skip
    instance = request.match_info["id"]
    async with request.app[CONTEXT].database.snapshot() as connection:
        source = await log_source(connection, instance)
    if source is None:
        raise ApiError(409, "not_started", f"instance {instance!r} has not started yet, so it has no log")
    if not source.address:
        raise unreachable(source)
    url = f"http://{source.address}{PROXY_LOGS_PREFIX}/{instance}"
    headers = {"Authorization": f"Bearer {source.secret}"}
    session = request.app[AGENT_PROXIES]
    try:
        async with session.get(url, params=query, headers=headers, timeout=_FOLLOW_TIMEOUT) as answer:
            if answer.status == _NOT_FOUND:
                raise ApiError(404, "no_log", f"worker {source.worker!r} keeps no such log of {instance!r}")
            if answer.status != _OK:
                raise unreachable(source)
            return await _relay(request, answer)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise unreachable(source) from error


async def _relay(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-cache"})
    await response.prepare(request)
    try:
        async for chunk in answer.content.iter_any():
            await write(response, chunk)
    except (aiohttp.ClientError, TimeoutError, SlowClientError, ConnectionError):
        cut(request)
    return response


_QUERY: Final = (
    Query("tail", "number of lines from the end", "integer"),
    Query("follow", "keep streaming new lines", "boolean"),
    Query("previous", "logs of the previous start", "boolean"),
)
ROUTES: Final = (
    Route(
        "GET", "/api/v1/instances/{id}/logs", get, Access.READ, "Read the logs of an instance", "instances",
        query=_QUERY, media="text/plain", stream=True,
    ),
)  # fmt: skip
