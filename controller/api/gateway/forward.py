"""Forwards `/v1` requests to a running instance of the deployment that `model` names. Bodies pass unchanged."""

import asyncio
import io
import time
from collections.abc import Mapping
from typing import Any, Final

import aiohttp
import orjson
import structlog
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from controller.api.agent_proxies import AGENT_PROXIES
from controller.api.body import read_body
from controller.api.errors import ApiError
from controller.api.gateway.endpoints import Endpoint
from controller.api.gateway.live_routes import LIVE_ROUTES
from controller.api.middlewares import REQUEST_ID
from controller.api.route import Access, Route
from controller.api.streams import SlowClientError, cut
from schemas.base import View
from schemas.wire import PROXY_ENGINE_PREFIX, PROXY_REFUSAL_HEADER

log = structlog.get_logger(__name__)

MAX_BODY_BYTES: Final = 64 * 2**20
UPLOAD_LIMIT_S: Final = 300.0
CLIENT_STALL_S: Final = 60.0  # a client that reads nothing for so long counts as gone
_RETRY_AFTER_S: Final = "2"
# Headers of one connection only (RFC 9110 7.6.1), and those between the client and the gateway.
_HOP_BY_HOP: Final = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip
_NOT_FORWARDED: Final = _HOP_BY_HOP | {"host", "authorization", "cookie", "content-length", "expect", "x-request-id"}
_NOT_RETURNED: Final = _HOP_BY_HOP | {"date", "server", "set-cookie", "x-request-id"}
_OUR_HEADERS_ONLY: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class ModelView(View):
    """A model in the form of OpenAI's API."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "gpuward"


class ModelList(View):
    """The models with a running instance."""

    object: str = "list"
    data: list[ModelView]


async def models(request: web.Request) -> web.Response:
    """`GET /v1/models`."""
    now = int(time.time())
    views = [ModelView(id=name, created=now) for name in request.app[LIVE_ROUTES].current().running_models()]
    return web.Response(body=ModelList(data=views).model_dump_json().encode(), content_type="application/json")


async def forward(request: web.Request) -> web.StreamResponse:
    """`POST /v1/...`: tries instances in the order in which the routing table picks them, each once."""
    routes = request.app[LIVE_ROUTES]
    table = routes.current()
    async with asyncio.timeout(UPLOAD_LIMIT_S):
        body = await read_body(request, MAX_BODY_BYTES)
    content = _parsed(body)
    model = content["model"]
    tried: list[str] = []
    for recheck in (False, True):
        if recheck:
            await routes.recheck()
        while (endpoint := table.pick(model, tried)) is not None:
            tried.append(endpoint.instance)
            with table.counted(endpoint):
                response = await _try(request, endpoint, _body_for(endpoint, content, body))
            if response is not None:
                return response
    if not table.knows(model):
        raise ApiError(
            404, "model_not_found", f"model: no deployment is named {model!r}; GET /v1/models lists the running ones"
        )
    raise ApiError(
        503,
        "model_not_running",
        f"model: no instance of {model!r} is reachable; see: gpuward describe deployment {model}",
        details={"tried": tried},
        headers={"Retry-After": _RETRY_AFTER_S},
    )


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, "invalid", f"body: not valid JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("model"), str):
        raise ApiError(400, "invalid", "model: is required; write the name of a deployment")
    return content


def _body_for(endpoint: Endpoint, content: Mapping[str, Any], body: bytes) -> bytes:
    """The body unchanged, except for servers that accept only their own model name."""
    if endpoint.request_model is None:
        return body
    return orjson.dumps({**content, "model": endpoint.request_model})


async def _try(request: web.Request, endpoint: Endpoint, body: bytes) -> web.StreamResponse | None:
    """The response of one instance; None where nothing of it arrived, so that another instance can be tried."""
    headers = CIMultiDict((n, v) for n, v in request.headers.items() if n.lower() not in _NOT_FORWARDED)
    for dropped in request.headers.get("Connection", "").split(","):
        headers.popall(dropped.strip(), None)
    headers["Authorization"] = f"Bearer {endpoint.secret}"
    headers["X-Request-ID"] = request[REQUEST_ID]
    # Kept as the client encoded it: parsing and encoding again would change it.
    url = URL(
        f"http://{endpoint.address}{PROXY_ENGINE_PREFIX}/{endpoint.instance}{request.rel_url.raw_path_qs}", encoded=True
    )
    try:
        async with request.app[AGENT_PROXIES].post(
            url, data=io.BytesIO(body), headers=headers, skip_auto_headers=_OUR_HEADERS_ONLY, allow_redirects=False
        ) as answer:
            refusal = answer.headers.get(PROXY_REFUSAL_HEADER)
            if refusal is not None:  # from the agent; an engine's own error is relayed to the client
                log.info("agent refused, trying another instance", instance=endpoint.instance, refusal=refusal)
                return None
            return await _relay(request, answer)
    except (aiohttp.ClientError, TimeoutError) as error:
        log.warning("instance unreachable, trying another", instance=endpoint.instance, error=str(error))
        return None


async def _relay(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    """Streams the response. A later error ends the connection, so that no client takes a part for the whole."""
    headers = CIMultiDict((n, v) for n, v in answer.headers.items() if n.lower() not in _NOT_RETURNED)
    response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
    try:
        await response.prepare(request)
        async for chunk in answer.content.iter_any():
            await _write(response, chunk)
        await response.write_eof()
    except (aiohttp.ClientError, SlowClientError, TimeoutError, ConnectionError) as error:
        log.warning("response broke off", error=str(error) or type(error).__name__)
        cut(request)
    return response


async def _write(response: web.StreamResponse, chunk: bytes) -> None:
    try:
        async with asyncio.timeout(CLIENT_STALL_S):
            await response.write(chunk)
    except TimeoutError as error:
        raise SlowClientError from error


_POSTS: Final = (
    ("/v1/chat/completions", "Create a chat completion"),
    ("/v1/completions", "Create a completion"),
    ("/v1/embeddings", "Create embeddings"),
)
ROUTES: Final = (
    Route("GET", "/v1/models", models, Access.INFER, "List models with a running instance", "models", ModelList),
    *(
        Route("POST", path, forward, Access.INFER, summary, "models", stream=True, outlives_key=True)
        for path, summary in _POSTS
    ),
)
