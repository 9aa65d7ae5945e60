"""The caller of a request: by its API key, or by the cookie of a browser's session."""

from aiohttp import web

from controller.api.context import KEYS
from controller.api.errors import ApiError
from controller.live.credentials import credential_in, session_tokens
from controller.live.key_ring import Principal, session_credential
from controller.live.same_origin import SAFE_METHODS, is_same_origin


async def caller_of(request: web.Request) -> Principal | None:
    """The caller; None without a valid key or session.

    Raises:
        ApiError: 403 for a request by cookie that could change something, or opens a WebSocket, and does not come from
            a page of this origin: a browser sends the cookie with whatever page asks.
    """
    given = credential_in(lambda name: request.headers.getall(name, ()))
    principal = await request.app[KEYS].first_owner(given.texts)
    unsafe = request.method not in SAFE_METHODS or "Upgrade" in request.headers
    if principal is not None and given.by_cookie and unsafe:
        refuse_other_origins(request)
    return principal


async def sessions_of(request: web.Request) -> list[tuple[Principal, str]]:
    """The sessions that the request carries and that are not over: their owners, and what their cookies hold."""
    tokens = session_tokens(request.headers.getall("Cookie", ()))
    found = [(await request.app[KEYS].authenticate(session_credential(token)), token) for token in tokens]
    return [(principal, token) for principal, token in found if principal is not None]


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
