"""Models in a worker's cache: list, remove those that no process uses. Asked of the worker's agent."""

import asyncio
from collections.abc import Sequence
from typing import Final

import aiohttp
import msgspec
from aiohttp import web

from controller.api.agent_proxies import AGENT_PROXIES, ask, unreachable
from controller.api.body import json_response, read_model
from controller.api.context import CONTEXT
from controller.api.errors import ApiError, unavailable
from controller.api.route import Access, Route
from controller.api.whole_lists import WHOLE_PAGING, whole_list
from controller.store.views.instances import cache_source
from schemas.api.envelopes import Page
from schemas.api.model_cache import CachedModels, CachedModelView
from schemas.api.requests import PruneBody
from schemas.api.view import from_json
from schemas.wire import PROXY_CACHE

_TIMEOUT: Final = aiohttp.ClientTimeout(total=25.0)
_MOST_BYTES: Final = 8 * 2**20
_OK: Final = 200
_NOT_FOUND: Final = 404


async def get_all(request: web.Request) -> web.Response:
    """`GET /workers/{name}/cache`."""
    return whole_list(request, await _ask(request, "GET", ()), lambda model: model.name)


async def prune(request: web.Request) -> web.Response:
    """`POST /workers/{name}/cache/prune`."""
    body = await read_model(request, PruneBody, optional=True)
    query: list[tuple[str, str | float]] = [
        *(("model", one) for one in body.models),
        ("unused_for_s", body.unused_for_s),
    ]
    return json_response(await _ask(request, "POST", query))


async def _ask(request: web.Request, method: str, query: Sequence[tuple[str, str | float]]) -> Page[CachedModelView]:
    async with request.app[CONTEXT].database.snapshot() as connection:
        source = await cache_source(connection, request.match_info["name"])
    if not source.address:
        raise unreachable(source)
    try:
        asked = ask(request.app[AGENT_PROXIES], source, PROXY_CACHE, query, timeout=_TIMEOUT, method=method)
        async with asked as answer:
            if answer.status == _NOT_FOUND:
                raise ApiError(
                    409, "agent_too_old", f"the agent of worker {source.worker!r} keeps no cache; upgrade it"
                )
            if answer.status != _OK:
                raise unreachable(source)
            try:
                content = await answer.content.readexactly(_MOST_BYTES)
            except asyncio.IncompleteReadError as ended:  # as it does, unless the answer is too long to be a list
                content = ended.partial
        found = Page[CachedModelView](items=list(from_json(CachedModels, content).items))
    except (aiohttp.ClientError, TimeoutError) as error:
        raise unreachable(source) from error
    except msgspec.DecodeError as error:
        message = f"the agent of worker {source.worker!r} gave an answer that is not understood; see its log"
        raise unavailable("bad_answer", message) from error
    return found


_PATH: Final = "/api/v1/workers/{name}/cache"
ROUTES: Final = (
    Route("GET", _PATH, get_all, Access.READ, "List cached models", "workers", Page[CachedModelView],
          query=WHOLE_PAGING),
    Route(
        "POST", _PATH + "/prune", prune, Access.OPERATE, "Remove cached models that no process uses", "workers",
        Page[CachedModelView], PruneBody,
    ),
)  # fmt: skip
