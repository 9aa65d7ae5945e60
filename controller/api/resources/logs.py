"""The logs of an instance, streamed from its worker's agent, or those of a deployment's instances, merged by time."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import Final

import aiohttp
from aiohttp import web

from controller.api.agent_proxies import AGENT_PROXIES, ask, unreachable
from controller.api.audit_trail import check_log_access, note_log_read
from controller.api.context import CONTEXT, PRINCIPAL
from controller.api.errors import ApiError, invalid
from controller.api.merged_logs.finder import MOST_RANK, LogFinder, agent_query
from controller.api.merged_logs.frames import LogItem, as_json, as_text
from controller.api.merged_logs.merge import Merge, Refresh
from controller.api.open_streams import OpenStreams
from controller.api.parameters import flag, integer, parameters_of
from controller.api.route import Access, Query, Route
from controller.api.streams import SlowClientError, cut, write
from controller.store.views.instances import LogSource, log_source
from controller.store.views.logs import DeploymentLogs, InstanceLog
from schemas.manifest.problems import FieldProblem
from schemas.wire import PROXY_LOGS_PREFIX

MERGES: Final = web.AppKey("MERGES", OpenStreams)
_MERGES_OF_KEY: Final = 16
_MOST_MERGES: Final = 64
FOLLOWED: Final = web.AppKey("FOLLOWED", OpenStreams)
_FOLLOWED_OF_KEY: Final = 64
_MOST_FOLLOWED: Final = 256
_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=None)  # a log may stay quiet
_OK: Final = 200
_NOT_FOUND: Final = 404
_TEXT: Final = "text/plain; charset=utf-8"
_JSON_LINES: Final = "application/x-ndjson"
_TIMED: Final = ("since", "timestamps", "format")


def bound_logs(app: web.Application) -> None:
    """Bounds the logs that are read at once, on live sockets too."""
    app[MERGES] = OpenStreams("merged logs", "too_many_merged_logs", of_key=_MERGES_OF_KEY, total=_MOST_MERGES)
    app[FOLLOWED] = OpenStreams(
        "followed logs", "too_many_followed_logs", of_key=_FOLLOWED_OF_KEY, total=_MOST_FOLLOWED
    )


async def source_of(request: web.Request, instance: str, rank: int = 0) -> LogSource:
    """The agent that has the log.

    Raises:
        ApiError: 409, the instance has not started; 503, its agent has no known address.
    """
    async with request.app[CONTEXT].database.snapshot() as connection:
        source = await log_source(connection, instance, rank)
    if source is None:
        raise ApiError(409, "not_started", f"instance {instance!r} has not started yet, so it has no log")
    if not source.address:
        raise unreachable(source)
    return source


@asynccontextmanager
async def opened_log(
    request: web.Request, source: LogSource, instance: str, query: Mapping[str, str]
) -> AsyncIterator[aiohttp.ClientResponse]:
    """Requests the log of one process from its agent, and notes in the audit log that it is read.

    Raises:
        ApiError: 404, the agent keeps no such log; 503, it does not answer.
    """
    path = f"{PROXY_LOGS_PREFIX}/{instance}"
    try:
        async with ask(request.app[AGENT_PROXIES], source, path, query, timeout=_TIMEOUT) as answer:
            if answer.status == _NOT_FOUND:
                raise ApiError(404, "no_log", f"worker {source.worker!r} keeps no such log of {instance!r}")
            if answer.status != _OK:
                raise unreachable(source)
            note_log_read(request, f"instances/{instance}/logs")
            yield answer
    except (aiohttp.ClientError, TimeoutError) as error:
        raise unreachable(source) from error


async def get(request: web.Request) -> web.StreamResponse:
    instance = request.match_info["id"]
    object_ = f"instances/{instance}/logs"
    check_log_access(request, object_)
    parameters = parameters_of(request)
    rank = integer(parameters, "rank", low=0, high=MOST_RANK)
    query = agent_query(parameters) | ({} if rank is None else {"rank": str(rank)})
    source = await source_of(request, instance, rank or 0)
    if any(name in parameters for name in _TIMED):
        alone = DeploymentLogs((InstanceLog(instance, rank or 0, 0, source),), False)
        return await _merged(request, parameters, alone, object_=object_)
    follows = flag(parameters, "follow")
    with request.app[FOLLOWED].admitted(request[PRINCIPAL].key_id) if follows else nullcontext():
        async with opened_log(request, source, instance, query) as answer:
            return await _relay(request, answer)


async def get_merged(request: web.Request) -> web.StreamResponse:
    object_ = f"deployments/{request.match_info['name']}/logs"
    check_log_access(request, object_)
    parameters = parameters_of(request)
    rank = integer(parameters, "rank", low=0, high=MOST_RANK)
    agent_query(parameters, timed=True)  # refused before anything is read
    _form(parameters)
    finder = LogFinder(
        request.app[CONTEXT].database, request.match_info["name"], request.query.getall("instance", []), rank
    )
    logs = await finder.first()
    again = finder.again if flag(parameters, "follow") else None
    return await _merged(request, parameters, logs, again, object_=object_, names=True)


async def _merged(
    request: web.Request,
    parameters: Mapping[str, str],
    logs: DeploymentLogs,
    refresh: Refresh | None = None,
    *,
    object_: str,
    names: bool = False,
) -> web.StreamResponse:
    query, form = agent_query(parameters, timed=True), _form(parameters)
    ranks = names and any(log.rank for log in logs.logs)
    as_lines = as_text(names=names, ranks=ranks, timestamps=flag(parameters, "timestamps"))
    media, written = (_TEXT, as_lines) if form == "text" else (_JSON_LINES, as_json)
    response = web.StreamResponse(headers={"Content-Type": media, "Cache-Control": "no-cache"})

    async def emit(items: list[LogItem]) -> None:
        await write(response, written(items), request.transport)

    with request.app[MERGES].admitted(request[PRINCIPAL].key_id):
        note_log_read(request, object_)
        await response.prepare(request)
        try:
            await Merge(request.app[AGENT_PROXIES], query, emit, refresh).run(logs.logs)
        except (SlowClientError, ConnectionError):
            cut(request)
    return response


def _form(parameters: Mapping[str, str]) -> str:
    form = parameters.get("format", "text")
    if form not in ("text", "json"):
        raise invalid([FieldProblem("format", f"must be text or json, got {form[:40]!r}")])
    return form


async def _relay(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": _TEXT, "Cache-Control": "no-cache"})
    await response.prepare(request)
    try:
        async for chunk in answer.content.iter_any():
            await write(response, chunk, request.transport)
    except (aiohttp.ClientError, TimeoutError, SlowClientError, ConnectionError):
        cut(request)
    return response


_VIEWERS: Final = "viewers where a setting allows it"
_INSTANCE: Final = f"Read the logs of an instance; {_VIEWERS}"
_RANK: Final = Query("rank", "of this rank (default 0) of an instance on several workers", "integer")
_QUERY: Final = (
    Query("tail", "number of lines from the end of each log", "integer"),
    Query("follow", "keep streaming new lines", "boolean"),
    Query("previous", "logs of the previous start", "boolean"),
    Query("since", "only lines written after this moment, such as 2026-11-23T14:05:00Z, or after that long ago: 10m"),
    Query(
        "timestamps", "the time before each line, to the second or better; `-` where the agent is too old", "boolean"
    ),
    Query("format", "text (default), or json: one object a line, with instance, rank, epoch, at, position and line"),
)
_MERGED: Final = (
    *_QUERY,
    Query("instance", "only of this instance; several may be given", many=True),
    Query("rank", "only of this rank of each instance", "integer"),
)
ROUTES: Final = (
    Route(
        "GET", "/api/v1/instances/{id}/logs", get, Access.READ, _INSTANCE, "instances",
        query=(*_QUERY, _RANK), media="text/plain", stream=True,
    ),
    Route(
        "GET", "/api/v1/deployments/{name}/logs", get_merged, Access.READ,
        f"Read the logs of all instances of a deployment, merged by time; {_VIEWERS}", "deployments",
        query=_MERGED, media="text/plain", stream=True,
    ),
)  # fmt: skip
