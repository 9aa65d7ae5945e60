"""`/v1/*`: a request goes to a running instance of the deployment that its `model` names; bytes pass untouched."""

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

from controller.api.endpoints import Endpoint
from controller.api.errors import ApiError
from controller.api.exchange import read_body
from controller.api.middlewares import REQUEST_ID
from controller.api.route import Access, Route
from controller.api.streams import SlowClientError, cut
from controller.api.upstream import UPSTREAM, Upstream
from schemas.base import View
from schemas.wire import PROXY_ENGINE_PREFIX, PROXY_REFUSAL_HEADER

log = structlog.get_logger(__name__)

MAX_BODY_BYTES: Final = 64 * 2**20
UPLOAD_LIMIT_S: Final = 300.0
CLIENT_STALL_S: Final = 60.0  # a client that takes nothing for this long is gone
_RETRY_AFTER_S: Final = "2"
# Of one connection only (RFC 9110 7.6.1), or the caller's business with us and not with the engine.
_HOP_BY_HOP: Final = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip
_NOT_FORWARDED: Final = _HOP_BY_HOP | {"host", "authorization", "cookie", "content-length", "expect", "x-request-id"}
_NOT_RETURNED: Final = _HOP_BY_HOP | {"date", "server", "set-cookie", "x-request-id"}
_OUR_HEADERS_ONLY: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class ModelView(View):
    """A model as OpenAI's API lists it."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "gpuward"


class ModelList(View):
    """The models that are served now."""

    object: str = "list"
    data: list[ModelView]


async def models(request: web.Request) -> web.Response:
    """`GET /v1/models`."""
    now = int(time.time())
    views = [ModelView(id=name, created=now) for name in _upstream(request).table.served()]
    return web.Response(body=ModelList(data=views).model_dump_json().encode(), content_type="application/json")


async def forward(request: web.Request) -> web.StreamResponse:
    """`POST /v1/...`: to the instance with the fewest requests, and to the next where the first cannot be reached."""
    upstream = _upstream(request)
    async with asyncio.timeout(UPLOAD_LIMIT_S):
        body = await read_body(request, MAX_BODY_BYTES)
    content = _parsed(body)
    model = content["model"]
    tried: list[str] = []
    for looked_again in (False, True):
        if looked_again:
            await upstream.look_again()
        while (endpoint := upstream.table.pick(model, tried)) is not None:
            tried.append(endpoint.instance)
            with upstream.table.serving(endpoint):
                response = await _try(request, upstream.session, endpoint, _body_for(endpoint, content, body))
            if response is not None:
                return response
    if not upstream.table.knows(model):
        raise ApiError(404, "model_not_found", f"no deployment is named {model!r}; GET /v1/models lists those that run")
    raise ApiError(
        503,
        "model_not_running",
        f"no instance of {model!r} answers now; see: gpuward describe deployment {model}",
        details={"tried": tried},
        headers={"Retry-After": _RETRY_AFTER_S},
    )


def _upstream(request: web.Request) -> Upstream:
    upstream = request.app[UPSTREAM]
    if upstream.refreshing.done():
        upstream.refreshing.result()  # raises what ended it: better told than served from a table that rots
    return upstream


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, "invalid", f"the body is no JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("model"), str):
        raise ApiError(400, "invalid", "model: is missing; write the name of a deployment")
    return content


def _body_for(endpoint: Endpoint, content: Mapping[str, Any], body: bytes) -> bytes:
    """The body untouched, but for servers that answer to one model name alone."""
    if endpoint.request_model is None:
        return body
    return orjson.dumps({**content, "model": endpoint.request_model})


async def _try(
    request: web.Request, session: aiohttp.ClientSession, endpoint: Endpoint, body: bytes
) -> web.StreamResponse | None:
    """The answer of one instance; None where nothing of one came, so that another may be asked."""
    headers = CIMultiDict((n, v) for n, v in request.headers.items() if n.lower() not in _NOT_FORWARDED)
    for dropped in request.headers.get("Connection", "").split(","):
        headers.popall(dropped.strip(), None)
    headers["Authorization"] = f"Bearer {endpoint.secret}"
    headers["X-Request-ID"] = request[REQUEST_ID]
    # Encoded as it came: to take it apart and put it together again would change it.
    url = URL(
        f"http://{endpoint.address}{PROXY_ENGINE_PREFIX}/{endpoint.instance}{request.rel_url.raw_path_qs}", encoded=True
    )
    try:
        async with session.post(
            url, data=io.BytesIO(body), headers=headers, skip_auto_headers=_OUR_HEADERS_ONLY, allow_redirects=False
        ) as answer:
            refusal = answer.headers.get(PROXY_REFUSAL_HEADER)
            if refusal is not None:  # the agent's word; what an engine answers, an error too, is the client's
                log.info("instance refused, trying another", instance=endpoint.instance, refusal=refusal)
                return None
            return await _relay(request, answer)
    except (aiohttp.ClientError, TimeoutError) as error:
        log.warning("instance not reached, trying another", instance=endpoint.instance, error=str(error))
        return None


async def _relay(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    """Hands the answer on as it comes. Once it has begun, trouble ends the connection: nobody may take half for all."""
    headers = CIMultiDict((n, v) for n, v in answer.headers.items() if n.lower() not in _NOT_RETURNED)
    response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
    try:
        await response.prepare(request)
        async for chunk in answer.content.iter_any():
            await _hand_on(response, chunk)
        await response.write_eof()
    except (aiohttp.ClientError, SlowClientError, TimeoutError, ConnectionError) as error:
        log.warning("answer broke off", error=str(error) or type(error).__name__)
        cut(request)
    return response


async def _hand_on(response: web.StreamResponse, chunk: bytes) -> None:
    try:
        async with asyncio.timeout(CLIENT_STALL_S):
            await response.write(chunk)
    except TimeoutError as error:
        raise SlowClientError from error


_POSTS: Final = (
    ("/v1/chat/completions", "Chat with a model"),
    ("/v1/completions", "Let a model complete a text"),
    ("/v1/embeddings", "Let a model embed texts"),
)
ROUTES: Final = (
    Route("GET", "/v1/models", models, Access.INFER, "Models that are served now", "models", ModelList),
    *(
        Route("POST", path, forward, Access.INFER, summary, "models", stream=True, max_body_bytes=MAX_BODY_BYTES)
        for path, summary in _POSTS
    ),
)
