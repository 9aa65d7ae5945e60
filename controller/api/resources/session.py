"""The caller (`GET /me`), and sessions of browsers: an API key is exchanged for a cookie that scripts cannot read."""

import asyncio
from collections.abc import Iterable
from typing import Final

from aiohttp import web

from controller.api.body import json_response, read_model
from controller.api.context import BODY, CONTEXT, KEYS, PRINCIPAL
from controller.api.errors import ApiError
from controller.api.middlewares import REQUEST_ID, may_read_logs, refuse_other_origins, sessions_of
from controller.api.route import Access, Route
from controller.live.errors import UnknownWhileAwayError
from controller.live.key_ring import SESSION_COOKIES, Principal, key_credential
from controller.live.same_origin import cookie_in
from controller.runtime.tries import Tries, client_of
from controller.store.access.key_reads import SECURE_SESSION_COOKIE, SESSION_COOKIE
from controller.store.access.sessions import SESSION_S, close_session, open_session
from controller.store.core.events import acting
from schemas.api.access import Role
from schemas.api.requests import SessionBody
from schemas.api.session import MeView, Right

# An address beyond its limit of wrong keys may still log in with a valid key, since behind an untrusted proxy all
# browsers share an address. Then the key is only compared with keys in memory, which reads no rows. The limit protects
# the database from floods, not keys from guesses: a key has 256 random bits.
WRONG_KEYS_A_MINUTE: Final = 10  # of one address
LOGINS_A_MINUTE: Final = 30  # of one key from one address, since each login writes rows and a broken client may loop
WRONG_KEYS: Final = web.AppKey("WRONG_KEYS", Tries)
LOGINS: Final = web.AppKey("LOGINS", Tries)
_MAX_BODY_BYTES: Final = 4096
_RIGHTS: Final[dict[Right, Access]] = {
    "read": Access.READ,
    "operate": Access.OPERATE,
    "administer": Access.ADMINISTER,
    "infer": Access.INFER,
}


def rights_of(role: Role, *, viewers_read_logs: bool) -> list[Right]:
    """The rights of a role."""
    rights = [right for right, access in _RIGHTS.items() if role in access.value]
    return [*rights, "logs"] if may_read_logs(role, viewers=viewers_read_logs) else rights


async def me(request: web.Request) -> web.Response:
    return json_response(_view(request, request[PRINCIPAL]))


async def login(request: web.Request) -> web.Response:
    if "Origin" in request.headers or "Sec-Fetch-Site" in request.headers:
        refuse_other_origins(request)
    with request.app[CONTEXT].bodies.hold(f"login {request.remote}") as request[BODY]:
        body = await read_model(request, SessionBody, limit_bytes=_MAX_BODY_BYTES)
    principal = request[PRINCIPAL] = await _owner(request, key_credential(body.key.strip()))
    if principal.role not in Access.READ.value:
        raise ApiError(403, "forbidden", "This key may only send requests to models.")
    logins, now_s = request.app[LOGINS], asyncio.get_running_loop().time()
    name = f"{principal.key_id} {client_of(request.remote or '')}"
    if wait_s := logins.begin(name, now_s):
        raise _too_many("this key has logged in too many times within a minute", wait_s)
    with acting(f"key:{principal.name}", request[REQUEST_ID]):
        token = await open_session(request.app[CONTEXT].database, principal.key_id, principal.name)
    if token is None:
        logins.take_back(name, now_s)
        raise ApiError(403, "forbidden", "This key is of one process alone. Log in with one of `gpuward key create`.")
    await _close_all(request, await sessions_of(request))
    response = json_response(_view(request, principal, session=True))
    own = _cookie_name(request)
    _clear_cookies(request, response, but=own)
    response.set_cookie(
        own,
        token,
        max_age=int(SESSION_S),
        path="/",
        httponly=True,
        samesite="Strict",
        secure=request.scheme == "https",
    )
    return response


async def _owner(request: web.Request, key: str) -> Principal:
    """The owner of a key.

    Raises:
        ApiError: 401 for a wrong key; 429 for a wrong key beyond the limit.
    """
    limit, now_s = request.app[WRONG_KEYS], asyncio.get_running_loop().time()
    client, keys = client_of(request.remote or ""), request.app[KEYS]
    if wait_s := limit.begin(client, now_s):
        known = keys.known(key)
        if known is None:
            raise _too_many("too many wrong keys from this address", wait_s)
        return known
    try:
        principal = await keys.authenticate(key)
    except (UnknownWhileAwayError, asyncio.CancelledError):
        limit.take_back(client, now_s)  # it is unknown whether the key is wrong
        raise
    if principal is None:
        raise ApiError(401, "unknown_key", "This key is not known here.")
    limit.take_back(client, now_s)
    return principal


def _too_many(why: str, wait_s: int) -> ApiError:
    return ApiError(429, "too_many_logins", f"{why}; try again in {wait_s} s", headers={"Retry-After": str(wait_s)})


async def logout(request: web.Request) -> web.Response:
    """Ends the session, and removes the cookie even if the session has ended before."""
    sessions = await sessions_of(request)
    if sessions:
        refuse_other_origins(request)
        request[PRINCIPAL] = sessions[0][0]
    await _close_all(request, sessions)
    response = web.Response(status=204)
    _clear_cookies(request, response)
    return response


async def _close_all(request: web.Request, sessions: Iterable[tuple[Principal, str]]) -> None:
    """Ends every session that the request carries, since the browser drops all their cookies."""
    for principal, token in sessions:
        with acting(f"key:{principal.name}", request[REQUEST_ID]):
            await close_session(request.app[CONTEXT].database, token)


def _cookie_name(request: web.Request) -> str:
    return SECURE_SESSION_COOKIE if request.scheme == "https" else SESSION_COOKIE


def _clear_cookies(request: web.Request, response: web.Response, *, but: str = "") -> None:
    """Removes the browser's session cookies of both names, since it may have logged in over another scheme."""
    for name in SESSION_COOKIES:
        if name != but and cookie_in("; ".join(request.headers.getall("Cookie", ())), name):
            secure = name == SECURE_SESSION_COOKIE
            response.del_cookie(name, path="/", httponly=True, samesite="Strict", secure=secure)


def _view(request: web.Request, principal: Principal, *, session: bool | None = None) -> MeView:
    return MeView(
        key_id=principal.key_id,
        name=principal.name,
        role=principal.role,
        may=rights_of(principal.role, viewers_read_logs=request.app[CONTEXT].viewers_read_logs),
        session=bool(principal.session) if session is None else session,
        encrypted=request.scheme == "https",
        version=request.app[CONTEXT].version,
    )


_PATH: Final = "/api/v1/session"
ROUTES: Final = (
    Route("GET", "/api/v1/me", me, Access.READ, "Read the caller's role and rights", "session", MeView),
    Route("POST", _PATH, login, Access.OPEN, "Exchange an API key for a browser's session", "session", MeView,
          SessionBody),
    Route("DELETE", _PATH, logout, Access.OPEN, "End the browser's session", "session", status=204),
)  # fmt: skip
