"""The origin of a request on aiohttp: the gateway and trusted proxies name it."""

import hmac
from typing import Final

from aiohttp import web

from http1.forwarded import BEHIND_PROXY_HEADER, GATEWAY_HEADER, SCHEMES, TrustedProxies

BEHIND_PROXY: Final = web.RequestKey("BEHIND_PROXY", bool)


class GatewayTrust:
    """Recognizes the gateway's requests by their Unix socket, or by the secret that both know (empty: none)."""

    def __init__(self, secret: str = "") -> None:
        self._secret = secret.encode()

    def __call__(self, request: web.BaseRequest) -> bool:
        if request.transport is not None and isinstance(request.transport.get_extra_info("sockname"), str | bytes):
            return True
        given = request.headers.get(GATEWAY_HEADER, "").encode(errors="surrogateescape")
        return bool(self._secret) and hmac.compare_digest(given, self._secret)


def with_origin(request: web.Request, proxies: TrustedProxies, gateway: GatewayTrust) -> web.Request:
    """Sets the request's `remote` and `scheme`, and `BEHIND_PROXY` where it came through a trusted proxy."""
    if gateway(request):
        if BEHIND_PROXY_HEADER in request.headers:
            request[BEHIND_PROXY] = True
        address = request.headers.get("X-Forwarded-For", "")
        scheme = request.headers.get("X-Forwarded-Proto", "")
        return request.clone(remote=address, scheme=scheme if scheme in SCHEMES else "http")
    peer = request.remote or ""
    if peer not in proxies:
        return request
    origin = proxies.origin(peer, request.headers, request.headers.getall("X-Forwarded-For", []))
    request[BEHIND_PROXY] = True
    return request.clone(remote=origin.address, scheme=origin.scheme or request.scheme)
