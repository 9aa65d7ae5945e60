"""The caller (`GET /me`), and sessions of browsers: an API key is exchanged for a cookie that scripts cannot read."""

import asyncio
from typing import Final

from aiohttp import web

from controller.api.body import read_model
from controller.api.callers import refuse_other_origins, session_token
from controller.api.context import BODY, CONTEXT, KEYS, PRINCIPAL
from controller.api.errors import ApiError
from controller.api.log_access import may_read_logs
from controller.api.login_limit import LoginLimit
from controller.api.middlewares import REQUEST_ID
from controller.api.responses import json_response
from controller.api.route import Access, Route
from controller.live.key_ring import Principal, key_credential
from controller.store.access.key_reads import SESSION_COOKIE
from controller.store.access.sessions import SESSION_S, close_session, open_session
from controller.store.core.acting import acting
from schemas.api.access import Role
from schemas.api.session import MeView, Right, SessionBody

LOGIN_LIMIT: Final = web.AppKey("LOGIN_LIMIT", LoginLimit)
_MAX_BODY_BYTES: Final = 4096
_RIGHTS: Final[dict[Right, Access]] = {
    "read": Access.READ,
    "operate": Access.OPERATE,
    "administer": Access.ADMINISTER,
    "infer": Access.INFER,
}


def rights_of(role: Role, *, viewers_read_logs: bool) -> list[Right]:
    """What a role may do."""
    rights = [right for right, access in _RIGHTS.items() if access.allows(role)]
    return [*rights, "logs"] if may_read_logs(role, viewers=viewers_read_logs) else rights


async def me(request: web.Request) -> web.Response:
    """`GET /me`."""
    return json_response(_view(request, request[PRINCIPAL]))


async def login(request: web.Request) -> web.Response:
    """`POST /session`."""
    if "Origin" in request.headers or "Sec-Fetch-Site" in request.headers:
        refuse_other_origins(request)
    limit, now_s = request.app[LOGIN_LIMIT], asyncio.get_running_loop().time()
    address = request.remote or ""
    if wait_s := limit.wait_s(address, now_s):
        message = f"too many wrong keys from this address; try again in {wait_s} s"
        raise ApiError(429, "too_many_logins", message, headers={"Retry-After": str(wait_s)})
    with request.app[CONTEXT].bodies.hold(f"login {address}") as request[BODY]:
        body = await read_model(request, SessionBody, limit_bytes=_MAX_BODY_BYTES)
    principal = await request.app[KEYS].authenticate(key_credential(body.key.strip()))
    if principal is None:
        limit.note_wrong(address, now_s)
        raise ApiError(401, "unknown_key", "This key is not known here.")
    if not Access.READ.allows(principal.role):
        raise ApiError(403, "forbidden", "This key may only send requests to models.")
    with acting(f"key:{principal.name}", request[REQUEST_ID]):
        token = await open_session(request.app[CONTEXT].database, principal.key_id, principal.name)
    if token is None:
        raise ApiError(403, "forbidden", "This key is of one process alone. Log in with one of `gpuward key create`.")
    response = json_response(_view(request, principal, session=True))
    response.set_cookie(
        SESSION_COOKIE,
        token,
        max_age=int(SESSION_S),
        path="/",
        httponly=True,
        samesite="Strict",
        secure=request.scheme == "https",
    )
    return response


async def logout(request: web.Request) -> web.Response:
    """`DELETE /session`."""
    if token := session_token(request):
        await close_session(request.app[CONTEXT].database, token)
    response = web.Response(status=204)
    response.del_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="Strict", secure=request.scheme == "https")
    return response


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
    Route("DELETE", _PATH, logout, Access.READ, "End the browser's session", "session", status=204),
)  # fmt: skip
