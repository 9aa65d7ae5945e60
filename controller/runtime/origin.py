"""Whose word on a request's origin aiohttp's handlers take: the gateway's, and that of trusted proxies."""

import hmac
from collections.abc import Callable
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from http1.forwarded import BEHIND_PROXY_HEADER, GATEWAY_HEADER, SCHEMES, TrustedProxies

BEHIND_PROXY: Final = web.RequestKey("BEHIND_PROXY", bool)


class GatewayTrust:
    """Recognizes requests that the gateway passes on: those on a Unix socket, and those that carry its secret.

    Args:
        secret: that both know; empty: the socket alone counts.
    """

    def __init__(self, secret: str = "") -> None:
        self._secret = secret.encode()

    def __call__(self, request: web.BaseRequest) -> bool:
        """Whether the gateway sends this request."""
        if request.transport is not None and isinstance(request.transport.get_extra_info("sockname"), str | bytes):
            return True
        given = request.headers.get(GATEWAY_HEADER, "").encode(errors="surrogateescape")
        return bool(self._secret) and hmac.compare_digest(given, self._secret)


def origin_middleware(
    proxies: TrustedProxies, gateway: Callable[[web.BaseRequest], bool] = lambda _: False
) -> Middleware:
    """Gives requests their origin: `remote` and `scheme`, and `BEHIND_PROXY` where a trusted proxy sent them.

    Args:
        proxies: the trusted ones.
        gateway: whether the gateway passes a request on, whose word on its origin counts.
    """

    @web.middleware
    async def from_origin(request: web.Request, handler: Handler) -> web.StreamResponse:
        if gateway(request):
            if BEHIND_PROXY_HEADER in request.headers:
                request[BEHIND_PROXY] = True
            address = request.headers.get("X-Forwarded-For", "")
            scheme = request.headers.get("X-Forwarded-Proto", "")
            return await handler(request.clone(remote=address, scheme=scheme if scheme in SCHEMES else "http"))
        peer = request.remote or ""
        if peer not in proxies:
            return await handler(request)
        origin = proxies.origin(peer, request.headers, request.headers.getall("X-Forwarded-For", []))
        request[BEHIND_PROXY] = True
        return await handler(request.clone(remote=origin.address, scheme=origin.scheme or request.scheme))

    return from_origin
