"""The middlewares of every handler: request id and origin, error responses, authentication and role, deadline."""

import asyncio
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from controller.api.context import BODY, CONTEXT, KEYS, PRINCIPAL
from controller.api.errors import (
    DATABASE_UNAVAILABLE,
    ApiError,
    as_api_error,
    database_unavailable,
    error_response,
    unavailable,
)
from controller.api.parameters import refuse_repeated, refuse_unknown
from controller.api.route import Access, Route
from controller.api.streams import STREAMS, StreamEndedError, close_socket, cut
from controller.live.key_ring import Principal, credential_in, session_credential, session_tokens
from controller.live.same_origin import SAFE_METHODS, is_same_origin
from controller.runtime.origin import with_origin
from controller.store.core.events import acting
from http1.daemon.log_limit import LogLimit
from schemas.api.access import Role
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
    """The signal before headers are sent, also of streams."""
    response.headers[_REQUEST_ID_HEADER] = request.get(REQUEST_ID, "")
    response.headers["Server"] = "gpuward"  # aiohttp would disclose its version and Python's
    request[_STARTED] = response


@web.middleware
async def receive(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Gives a request its id, which logs carry, and its origin. A valid id of the client is kept."""
    context = request.app[CONTEXT]
    given = request.headers.get(_REQUEST_ID_HEADER, "")
    request[REQUEST_ID] = given if _GOOD_REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
    with structlog.contextvars.bound_contextvars(request_id=request[REQUEST_ID]):
        return await handler(with_origin(request, context.proxies, context.from_gateway))


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Exception as error:  # the edge of the API: a defect of a handler ends its request alone
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
            cut(request)  # the client would read an error as the rest of the started response
        known = known or ApiError(
            _SERVER_ERROR, "internal", "internal error; search the controller's log for the request id"
        )
        request[ERROR_CODE] = known.code
        return error_response(known, request_id=request[REQUEST_ID])


def _admitted_to_log(request: web.Request, error: Exception, known: ApiError | None) -> int | None:
    """Number of failures of this kind that were not logged before; None: this failure is not logged.

    Failures that many requests have at once, such as a database that is away, are logged once a minute; bugs always.
    """
    if known is None:
        return 0
    if known.status < _SERVER_ERROR:
        return None
    common = known.code in (DATABASE_UNAVAILABLE, DATABASE_FULL, "timed_out", "unavailable")
    return request.app[FAILURES_LOGGED].admit(known.code if common else f"{known.code} {error}")


@web.middleware
async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Requires a key or a session, and a role that the route allows. Routes outside the table cannot be called."""
    _refuse_control_characters(request)
    route = route_of(request)
    if route is not None and route.access is Access.OPEN:
        return await handler(request)
    principal = await caller_of(request)
    if principal is None:
        raise _unauthenticated()
    if route is None:
        return await handler(request)  # the handler of unknown paths and methods
    request[PRINCIPAL] = principal
    if principal.role not in route.access.value:
        allowed = ", ".join(sorted(route.access.value))
        raise ApiError(403, "forbidden", f"role {principal.role} is not allowed here; use a key with one of: {allowed}")
    request.app[KEYS].note_use(principal)
    acts = acting(f"key:{principal.name}", request[REQUEST_ID], role=principal.role)
    with acts, request.app[CONTEXT].bodies.hold(principal.key_id) as request[BODY]:
        _refuse_unknown(request, route)
        return await handler(request)


def _refuse_control_characters(request: web.Request) -> None:
    """Refuses a path or query with characters that no name has: NUL, other control characters, broken UTF-8."""
    url = request.rel_url
    if _UNUSABLE.search(url.path) or _UNUSABLE.search(url.query_string):
        raise ApiError(400, "invalid", "URL: contains control characters or broken UTF-8; remove them")


def _refuse_unknown(request: web.Request, route: Route) -> None:
    """Refuses query parameters that the route does not state, repeated ones and, for writes, unknown preconditions.

    An ignored parameter would answer another question; an ignored precondition would write regardless. `If-Match: *`
    always holds.
    """
    if request.query:
        refuse_unknown(request.query, *(query.name for query in route.query))
        refuse_repeated(request.query, route.query)
    if request.method in SAFE_METHODS:
        return
    if not route.expects and request.headers.get("If-Match", "*").strip() != "*":
        raise ApiError(400, "invalid", "If-Match: what this path writes has no generation; leave the header out")
    if route.expects != "state" and "If-None-Match" in request.headers:
        fix = "send If-Match: GENERATION" if route.expects else "leave the header out"
        raise ApiError(400, "invalid", f"If-None-Match: only a PUT that applies a manifest knows it; {fix}")


async def caller_of(request: web.Request) -> Principal | None:
    """The caller; None without a valid key or session.

    Raises:
        ApiError: 403 for a request by cookie that could change something, or opens a WebSocket, and comes from a page
            of another origin: browsers send the cookie with requests of any page.
    """
    given = credential_in(lambda name: request.headers.getall(name, ()))
    principal = await request.app[KEYS].first_owner(given.texts)
    unsafe = request.method not in SAFE_METHODS or "Upgrade" in request.headers
    if principal is not None and given.by_cookie and unsafe:
        refuse_other_origins(request)
    return principal


def may_read_logs(role: Role, *, viewers: bool) -> bool:
    """Whether a role may read logs and the lines of them that messages quote. `viewers`: viewers may.

    Engines print requests, paths and anything else.
    """
    return role in (Access.READ if viewers else Access.OPERATE).value


async def sessions_of(request: web.Request) -> list[tuple[Principal, str]]:
    """The valid sessions that the request carries: owners and tokens."""
    tokens = session_tokens(request.headers.getall("Cookie", ()))
    owners = [(await request.app[KEYS].authenticate(session_credential(token)), token) for token in tokens]
    return [(principal, token) for principal, token in owners if principal is not None]


def refuse_other_origins(request: web.Request) -> None:
    """Raises `ApiError`: 403, the request comes from a page of another origin."""
    same = is_same_origin(
        fetch_site=request.headers.get("Sec-Fetch-Site", ""),
        origin=request.headers.get("Origin", ""),
        host=request.headers.get("Host", ""),
    )
    if not same:
        message = (
            "Origin: a session counts only for pages of this address; send Authorization: Bearer KEY from elsewhere. "
            "Behind a reverse proxy, let it pass on Host as it came."
        )
        raise ApiError(403, "cross_origin", message)


def _unauthenticated() -> ApiError:
    return ApiError(
        401,
        "unauthenticated",
        "API key is missing or invalid; send Authorization: Bearer KEY (for gpuward: set GPUWARD_API_KEY)",
        headers={"WWW-Authenticate": "Bearer"},
    )


def route_of(request: web.Request) -> Route | None:
    """The route in the table; None for an unknown path or method."""
    resource = request.match_info.route.resource
    return request.app[ROUTES].get((request.method, resource.canonical)) if resource is not None else None


@web.middleware
async def limit(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Ends streams when their key is revoked or the server stops, and other handlers after a deadline."""
    route = route_of(request)
    if route is None:
        return await handler(request)
    if route.stream:
        return await _stream(request, handler)
    if route.from_memory or route.access is Access.OPEN:
        async with asyncio.timeout(HANDLER_DEADLINE_S):
            return await handler(request)
    waits, space = request.app[DATABASE_WAITS], request.app[CONTEXT].database.space
    if waits.away:
        raise database_unavailable(full=space.full)
    try:
        async with asyncio.timeout(HANDLER_DEADLINE_S) as deadline:
            with waits.held(deadline):
                return await handler(request)
    except TimeoutError:
        if waits.away:
            raise database_unavailable(full=space.full) from None
        raise


async def _stream(request: web.Request, handler: Handler) -> web.StreamResponse:
    if PRINCIPAL not in request:
        return await handler(request)
    try:
        with request.app[STREAMS].registered(request[PRINCIPAL].credential):
            return await handler(request)
    except StreamEndedError as ended:
        if _STARTED not in request:
            stopping = unavailable("unavailable", "the controller is stopping")
            raise _unauthenticated() if ended.why == "revoked" else stopping from ended
        started = request[_STARTED]
        if isinstance(started, web.WebSocketResponse):
            await close_socket(started, ended.why)
        elif ended.why == "revoked":
            cut(request)  # the client would read a clean end as the end of the data
        return started


class DatabaseWaits:
    """Ends requests that would wait for a database that is away: running requests, and new ones at once."""

    def __init__(self) -> None:
        self._deadlines: set[asyncio.Timeout] = set()
        self._away = False

    @property
    def away(self) -> bool:
        return self._away

    def note(self, *, away: bool) -> None:
        """Notes that the database does not answer, which ends the requests that wait for it, or answers again."""
        self._away = away
        if away:
            now = asyncio.get_running_loop().time()
            for deadline in self._deadlines:
                if not deadline.expired():
                    deadline.reschedule(now)

    @contextmanager
    def held(self, deadline: asyncio.Timeout) -> Iterator[None]:
        """Lets `note` end the deadline early."""
        self._deadlines.add(deadline)
        try:
            yield
        finally:
            self._deadlines.discard(deadline)


DATABASE_WAITS: Final = web.AppKey("DATABASE_WAITS", DatabaseWaits)
