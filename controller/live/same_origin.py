"""Checks that a browser's request comes from a page of the same origin; reads its cookies. Pure.

A browser sends cookies for pages of any origin. It names the page's origin in `Sec-Fetch-Site` (in secure contexts) and
in `Origin` (in all requests but plain reads): https://www.w3.org/TR/fetch-metadata/, RFC 6454.
"""

from typing import Final

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_SAME: Final = "same-origin"


def is_same_origin(*, fetch_site: str, origin: str, host: str) -> bool:
    """Takes `Sec-Fetch-Site`, `Origin` and `Host`, empty where missing. False where the origin is unknown."""
    if fetch_site:
        return fetch_site.strip().lower() == _SAME
    scheme, mark, authority = origin.strip().lower().partition("://")
    if not mark or scheme not in ("http", "https") or not host:
        return False
    return authority == _without_default_port(host.strip().lower(), scheme)


def _without_default_port(host: str, scheme: str) -> str:
    """A browser leaves the scheme's own port out of `Origin`; other clients may write it in `Host`."""
    return host.removesuffix(":443" if scheme == "https" else ":80")


def cookie_in(header: str, name: str) -> str:
    """The first value of a cookie in a `Cookie` header; empty without it."""
    for part in header.split(";"):
        given, mark, value = part.strip().partition("=")
        if mark and given == name:
            return value.strip().strip('"')
    return ""
