"""The caller of a request: by its API key, or by the cookie of a browser's session."""

from aiohttp import web

from controller.api.context import KEYS
from controller.api.errors import ApiError
from controller.live.key_ring import Principal, key_credential, session_credential
from controller.store.access.key_reads import SESSION_COOKIE
from http1.same_origin import SAFE_METHODS, cookie_in, is_same_origin


async def caller_of(request: web.Request) -> Principal | None:
    """The caller; None without a valid key or session. A key that is given counts alone, be it right or wrong.

    Raises:
        ApiError: 403 for a request by cookie that could change something, or opens a WebSocket, and does not come from
            a page of this origin: a browser sends the cookie with whatever page asks.
    """
    if "Authorization" in request.headers:
        scheme, _, key = request.headers["Authorization"].partition(" ")
        return await request.app[KEYS].authenticate(key_credential(key.strip())) if scheme.lower() == "bearer" else None
    token = session_token(request)
    principal = await request.app[KEYS].authenticate(session_credential(token)) if token else None
    if principal is not None and (request.method not in SAFE_METHODS or "Upgrade" in request.headers):
        refuse_other_origins(request)
    return principal


def session_token(request: web.Request) -> str:
    """What the session's cookie holds; empty without it."""
    return cookie_in("; ".join(request.headers.getall("Cookie", [])), SESSION_COOKIE)


def refuse_other_origins(request: web.Request) -> None:
    """Checks that a request comes from a page of this origin.

    Raises:
        ApiError: 403, it does not.
    """
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
