"""The topic `logs`: the log of an instance as text, or the logs of a deployment, merged line by line."""

import codecs
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import aiohttp
import orjson
from aiohttp import web

from controller.api.agent_proxies import AGENT_PROXIES, ask, unreachable
from controller.api.audit_trail import check_log_access, note_log_read
from controller.api.context import CONTEXT, PRINCIPAL
from controller.api.errors import ApiError, invalid
from controller.api.merged_logs.asked import MAX_TAIL, MOST_RANK, LogFinder, agent_query
from controller.api.merged_logs.frames import Line
from controller.api.merged_logs.merge import Key, Merge, Told
from controller.api.merged_logs.texts import as_object
from controller.api.parameters import flag, whole_number
from controller.api.resources.logs import FOLLOWED, MERGES
from controller.store.views.instances import log_source
from controller.store.views.logs import DeploymentLogs
from schemas.manifest.problems import FieldProblem
from schemas.wire import PROXY_LOGS_PREFIX

OPENED: Final = b'{"type":"opened"}'
_OF_INSTANCE: Final = ("instance", "tail", "previous")
_OF_DEPLOYMENT: Final = ("deployment", "instance", "rank", "tail", "since", "after")
LOG_PARAMETERS: Final = tuple(dict.fromkeys((*_OF_INSTANCE, *_OF_DEPLOYMENT)))
_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=None)  # a log may stay quiet
_OK: Final = 200
_NOT_FOUND: Final = 404
_AFTER_FIELDS: Final = 5
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_MAX_SHOWN: Final = 80

Parameters = Mapping[str, str]
Emit = Callable[[bytes | Callable[[], bytes]], Awaitable[None]]


async def logs(request: web.Request, parameters: Parameters, emit: Emit) -> None:
    """Follows logs. That of an instance ends with the process, those of a deployment with the deployment."""
    merged = "deployment" in parameters
    check_log_access(request, _object(parameters))
    known = _OF_DEPLOYMENT if merged else _OF_INSTANCE
    form = "with `deployment`" if merged else "without `deployment`"
    if wrong := [name for name in parameters if name not in known]:
        raise invalid([FieldProblem(name, f"is not known {form}; use {', '.join(known)}") for name in wrong])
    await (_merged if merged else _of_instance)(request, parameters, emit)


def _object(parameters: Parameters) -> str:
    """As the audit log names it."""
    kind, name = ("deployments", "deployment") if "deployment" in parameters else ("instances", "instance")
    return f"{kind}/{parameters.get(name, '')}/logs"


async def _of_instance(request: web.Request, parameters: Parameters, emit: Emit) -> None:
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
    path = f"{PROXY_LOGS_PREFIX}/{instance}"
    asked = query | ({} if tail is None else {"tail": str(tail)})
    with app[FOLLOWED].admitted(request[PRINCIPAL].key_id):
        try:
            async with ask(app[AGENT_PROXIES], source, path, asked, timeout=_TIMEOUT) as answer:
                if answer.status == _NOT_FOUND:
                    raise ApiError(404, "no_log", f"worker {source.worker!r} keeps no such log of {instance!r}")
                if answer.status != _OK:
                    raise unreachable(source)
                note_log_read(request, _object(parameters))
                await emit(OPENED)
                decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a chunk may end within a character
                async for chunk in answer.content.iter_any():
                    if text := decoder.decode(chunk):
                        await emit(orjson.dumps({"type": "log", "text": text}))
        except (aiohttp.ClientError, TimeoutError) as error:
            raise unreachable(source) from error


async def _merged(request: web.Request, parameters: Parameters, emit: Emit) -> None:
    rank = whole_number(parameters, "rank", low=0, high=MOST_RANK)
    instances = [name for name in parameters.get("instance", "").split(",") if name]
    query = agent_query({**parameters, "follow": "true"}, timed=True)
    after = read_after(parameters.get("after", ""))
    finder = LogFinder(request.app[CONTEXT].database, parameters["deployment"], instances, rank)
    told: set[Key] | None = None

    async def tell(found: DeploymentLogs) -> DeploymentLogs:
        """Says which logs are followed where that has changed. A deployment that exists may get other instances."""
        nonlocal told
        present = {(log.instance, log.rank, log.epoch) for log in found.logs}
        if present != told:
            told = present
            sources = [{"instance": one.instance, "rank": one.rank, "epoch": one.epoch} for one in found.logs]
            await emit(orjson.dumps({"type": "sources", "sources": sources}))
        return DeploymentLogs(found.logs, found.lives or (found.exists and not instances), found.exists)

    async def look() -> DeploymentLogs:
        return await tell(await finder.again())

    async def emit_items(items: list[Told]) -> None:
        await emit(orjson.dumps({"type": "lines", "items": [as_object(*one) for one in items]}))

    with request.app[MERGES].admitted(request[PRINCIPAL].key_id):
        found = await finder.first()
        earlier = await finder.earlier(after, found.logs)
        note_log_read(request, _object(parameters))
        await emit(OPENED)
        followed = (await tell(found)).logs
        await Merge(request.app[AGENT_PROXIES], query, emit_items, look, after).run((*earlier, *followed))


def read_after(text: str) -> dict[Key, Line]:
    """The last lines that a client has, written as `INSTANCE/RANK/EPOCH/POSITION/MILLISECONDS`, with commas between.

    Raises:
        ApiError: 400, one is not of this form.
    """
    found: dict[Key, Line] = {}
    for one in filter(None, text.split(",")):
        instance, *numbers = one.split("/")
        if len(numbers) != _AFTER_FIELDS - 1 or not all(map(_NUMBER.fullmatch, numbers)):
            form = "must be INSTANCE/RANK/EPOCH/POSITION/MILLISECONDS of the last line of each log"
            raise invalid([FieldProblem("after", f"{form}, got {one[:_MAX_SHOWN]!r}")])
        rank, epoch, position, at_ms = map(int, numbers)
        found[instance, rank, epoch] = Line(b"", at_ms=at_ms, position=position)
    return found
