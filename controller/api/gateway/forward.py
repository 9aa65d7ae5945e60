"""Forwards `/v1` requests to a running instance of the deployment that `model` names. Bodies pass unchanged."""

import asyncio
import time
from typing import Final

import structlog
from aiohttp import web

from controller.api.body import read_body
from controller.api.errors import ApiError
from controller.api.gateway.endpoints import Endpoint
from controller.api.gateway.exchange import Failure, HeldAnswer, exchange
from controller.api.gateway.live_routes import LIVE_ROUTES
from controller.api.gateway.outcomes import VERDICTS, Settled, TryAnother
from controller.api.gateway.pick_instance import RoutingTable
from controller.api.gateway.request_body import Asked, BadRequestError, check_charset, read_asked
from controller.api.gateway.unserved import settled_error, unserved
from controller.api.route import Access, Route
from schemas.base import View

log = structlog.get_logger(__name__)

MAX_BODY_BYTES: Final = 64 * 2**20
UPLOAD_LIMIT_S: Final = 300.0


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
    """`POST /v1/...`: the answer of one replica, and of another only where no engine can have seen it."""
    routes = request.app[LIVE_ROUTES]
    table = routes.current()
    asked = await _read(request)
    tried: list[str] = []
    held: HeldAnswer | None = None
    for recheck in (False, True):
        if recheck:
            await routes.recheck()
        while (endpoint := table.pick(asked.model, tried)) is not None:
            tried.append(endpoint.instance)
            outcome = await _ask_one(request, table, endpoint, asked)
            if not isinstance(outcome, Failure):
                return outcome
            held = outcome.held or held
        if held is not None:
            return _answer_held(held)
    raise unserved(asked.model, table, tried)


async def _read(request: web.Request) -> Asked:
    """The body, with the model that it asks for."""
    try:
        check_charset(request.headers.get("Content-Type", ""))
        async with asyncio.timeout(UPLOAD_LIMIT_S):
            body = await read_body(request, MAX_BODY_BYTES)
        return read_asked(body)
    except BadRequestError as error:
        raise ApiError(400, "invalid", str(error), param=error.param or None) from error
    except TimeoutError as error:
        raise ApiError(
            408, "body_timed_out", f"body: did not arrive within {UPLOAD_LIMIT_S:g} s; send it again"
        ) from error


async def _ask_one(
    request: web.Request, table: RoutingTable, endpoint: Endpoint, asked: Asked
) -> web.StreamResponse | Failure:
    """The replica's answer, or a failure after which another one may be tried.

    Raises:
        ApiError: the engine may have seen the request, so it goes nowhere else.
    """
    with table.counted(endpoint):
        body = asked.with_model(endpoint.request_model)
        outcome = await exchange(request, endpoint, body, lambda: table.answered(endpoint))
    if not isinstance(outcome, Failure):
        return outcome
    match VERDICTS[outcome.happening]:
        case TryAnother():
            table.refused(endpoint)
            log.info(
                "replica refused",
                instance=endpoint.instance,
                happening=outcome.happening.name.lower(),
                error=outcome.detail,
            )
            return outcome
        case Settled() as settled:
            raise settled_error(settled, endpoint, outcome.detail)


def _answer_held(held: HeldAnswer) -> web.Response:
    held.headers.setdefault("Retry-After", "1")
    return web.Response(status=held.status, headers=held.headers, body=held.body)


_POSTS: Final = (
    ("/v1/chat/completions", "Create a chat completion"),
    ("/v1/completions", "Create a completion"),
    ("/v1/responses", "Create a response"),
    ("/v1/messages", "Create a message"),
    ("/v1/messages/count_tokens", "Count the tokens of a message"),
    ("/v1/embeddings", "Create embeddings"),
)
ROUTES: Final = (
    Route(
        "GET",
        "/v1/models",
        models,
        Access.INFER,
        "List models with a running instance",
        "models",
        ModelList,
        from_memory=True,
    ),
    *(
        Route("POST", path, forward, Access.INFER, summary, "models", stream=True, outlives_key=True)
        for path, summary in _POSTS
    ),
)
