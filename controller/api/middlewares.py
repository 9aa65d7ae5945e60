"""Wraps every handler: request id, error responses, authentication and role, deadline."""

import asyncio
import re
import secrets
from typing import Final

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from controller.api.callers import caller_of
from controller.api.context import BODY, CONTEXT, DATABASE_WAITS, KEYS, PRINCIPAL
from controller.api.errors import (
    DATABASE_UNAVAILABLE,
    ApiError,
    as_api_error,
    database_unavailable,
    error_response,
    unavailable,
)
from controller.api.parameters import refuse_preconditions, refuse_repeated, refuse_unknown
from controller.api.route import Access, Route
from controller.api.streams import STREAMS, StreamEndedError, close_socket, cut
from controller.live.same_origin import SAFE_METHODS
from controller.store.core.events import acting
from http1.daemon.log_limit import LogLimit
from schemas.database_disk import DATABASE_FULL

log = structlog.get_logger(__name__)

HANDLER_DEADLINE_S: Final = 30.0
REQUEST_ID: Final = web.RequestKey("REQUEST_ID", str)
ERROR_CODE: Final = web.RequestKey("ERROR_CODE", str)
ROUTES: Final = web.AppKey("ROUTES", dict[tuple[str, str], Route])
_STARTED: Final = web.RequestKey("STARTED", web.StreamResponse)
FAILURES_LOGGED: Final = web.AppKey("FAILURES_LOGGED", LogLimit)
_REQUEST_ID_HEADER: Final = "X-Request-ID"
_GOOD_REQUEST_ID: Final = re.compile(r"^[A-Za-z0-9._-]{1,64}$")
_UNUSABLE: Final = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_SERVER_ERROR: Final = 500


async def note_start(request: web.Request, response: web.StreamResponse) -> None:
    """Signal before headers are sent, also of streams: adds the request id, and keeps versions to itself."""
    response.headers[_REQUEST_ID_HEADER] = request.get(REQUEST_ID, "")
    response.headers["Server"] = "gpuward"  # not that of Python and its library
    request[_STARTED] = response


@web.middleware
async def refuse_control_characters(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuses a path or query that holds what no name can: NUL and other control characters, or broken UTF-8."""
    url = request.rel_url
    if _UNUSABLE.search(url.path) or _UNUSABLE.search(url.query_string):
        raise ApiError(400, "invalid", "URL: contains control characters or broken UTF-8; remove them")
    return await handler(request)


@web.middleware
async def identify(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Takes the client's request id if it is valid, else makes one; logs carry it."""
    given = request.headers.get(_REQUEST_ID_HEADER, "")
    request[REQUEST_ID] = given if _GOOD_REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
    with structlog.contextvars.bound_contextvars(request_id=request[REQUEST_ID]):
        return await handler(request)


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns every exception into an error response."""
    try:
        return await handler(request)
    except Exception as error:
        known = as_api_error(error)
        more = _admitted_to_log(request, error, known)
        if more is not None:
            log.warning(
                "request failed",
                method=request.method,
                path=request.path,
                status=known.status if known else _SERVER_ERROR,
                exc_info=known is None,
                error=str(error) or type(error).__name__,
                more_before=more,
            )
        if _STARTED in request:
            cut(request)  # a part of a response is sent; an error after it would be read as its rest
        known = known or ApiError(
            _SERVER_ERROR, "internal", "internal error; search the controller's log for the request id"
        )
        request[ERROR_CODE] = known.code
        return error_response(known, request_id=request[REQUEST_ID])


def _admitted_to_log(request: web.Request, error: Exception, known: ApiError | None) -> int | None:
    """How many failures of its kind were not logged before this one; None: this one is not logged.

    What many requests meet at once, such as a database that is away, is logged once a minute. A bug always is.
    """
    if known is None:
        return 0
    if known.status < _SERVER_ERROR:
        return None
    one_kind = known.code in (DATABASE_UNAVAILABLE, DATABASE_FULL, "timed_out", "unavailable")
    return request.app[FAILURES_LOGGED].admit(known.code if one_kind else f"{known.code} {error}")


@web.middleware
async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Requires a key or a session, and a role that the route allows. A route outside the table can never be called."""
    route = route_of(request)
    if route is not None and route.access is Access.OPEN:
        return await handler(request)
    principal = await caller_of(request)
    if principal is None:
        raise _unauthenticated()
    if route is None:
        return await handler(request)  # the handler of unknown paths and methods
    request[PRINCIPAL] = principal
    if not route.access.allows(principal.role):
        allowed = ", ".join(sorted(route.access.value))
        raise ApiError(403, "forbidden", f"role {principal.role} is not allowed here; use a key with one of: {allowed}")
    request.app[KEYS].note_use(principal)
    acts = acting(f"key:{principal.name}", request[REQUEST_ID], role=principal.role)
    with acts, request.app[CONTEXT].bodies.hold(principal.key_id) as request[BODY]:
        return await handler(request)


@web.middleware
async def refuse_unknown_parameters(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuses query parameters that the route does not state: to ignore a typing error would answer another question.

    Pages, probes and agents are spared. Of one that is given twice, one value would be ignored too.
    """
    route = route_of(request)
    if request.query and route is not None and route.access is not Access.OPEN:
        refuse_unknown(request.query, *(query.name for query in route.query))
        refuse_repeated(request.query, route.query)
    return await handler(request)


@web.middleware
async def refuse_unknown_preconditions(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuses a write that has a precondition which its route does not know: to ignore it would write all the same."""
    route = route_of(request)
    if request.method not in SAFE_METHODS and route is not None and route.access is not Access.OPEN:
        refuse_preconditions(request.headers, route.expects)
    return await handler(request)


def _unauthenticated() -> ApiError:
    return ApiError(
        401,
        "unauthenticated",
        "API key is missing or invalid; send Authorization: Bearer KEY (for gpuward: set GPUWARD_API_KEY)",
        headers={"WWW-Authenticate": "Bearer"},
    )


@web.middleware
async def end_streams(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Ends streams when their key is revoked or the server stops."""
    route = route_of(request)
    if route is None or not route.stream or PRINCIPAL not in request:
        return await handler(request)
    try:
        with request.app[STREAMS].registered(request[PRINCIPAL].credential):
            return await handler(request)
    except StreamEndedError as ended:
        if _STARTED not in request:
            raise _unauthenticated() if ended.why == "revoked" else _stopping() from ended
        started = request[_STARTED]
        if isinstance(started, web.WebSocketResponse):
            await close_socket(started, ended.why)
        elif ended.why == "revoked":
            cut(request)  # a clean end would be read as the stream's own
        return started


def _stopping() -> ApiError:
    return unavailable("unavailable", "the controller is stopping")


def route_of(request: web.Request) -> Route | None:
    """The route in the table; None for an unknown path or method."""
    resource = request.match_info.route.resource
    return request.app[ROUTES].get((request.method, resource.canonical)) if resource is not None else None


def deadline(seconds: float = HANDLER_DEADLINE_S) -> Middleware:
    """Limits every handler except streams. One that needs the database ends as soon as that is known to be away."""

    @web.middleware
    async def limited(request: web.Request, handler: Handler) -> web.StreamResponse:
        route = route_of(request)
        if route is None or route.stream:
            return await handler(request)
        waits = request.app[DATABASE_WAITS]
        if route.from_memory or route.access is Access.OPEN:
            async with asyncio.timeout(seconds):
                return await handler(request)
        space = request.app[CONTEXT].database.space
        if waits.away:
            raise database_unavailable(full=space.full)
        try:
            async with asyncio.timeout(seconds) as limit:
                with waits.held(limit):
                    return await handler(request)
        except TimeoutError:
            if waits.away:
                raise database_unavailable(full=space.full) from None
            raise

    return limited
