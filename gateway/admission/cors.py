"""Which pages of other origins may read the answers of models. Pure.

The protocol: https://fetch.spec.whatwg.org/#http-cors-protocol.

Such pages send a key. No cookie counts: a session is for pages of the gateway's own origin alone.
"""

from collections.abc import Mapping
from typing import Final

from http1.protocol.heads import Fields, lines_of
from schemas.addresses import ANY_ORIGIN

_ORIGIN: Final = b"origin"
_METHOD: Final = b"access-control-request-method"
_HEADERS: Final = b"access-control-request-headers"
_METHODS: Final = b"GET, POST"
_KEPT_S: Final = 600  # for which a browser keeps the answer to a preflight
_READABLE: Final = b", ".join(
    (
        *(b"x-request-id", b"retry-after", b"x-should-retry", b"server-timing"),
        *(b"x-ratelimit-%b" % part for part in (b"limit-requests", b"remaining-requests", b"reset-requests")),
        *(b"x-ratelimit-%b" % part for part in (b"limit-tokens", b"remaining-tokens", b"reset-tokens")),
    )
)


class Cors:
    """Judges origins. `origins`: those whose pages may read answers; `*`: any."""

    def __init__(self, origins: tuple[str, ...] = ()) -> None:
        self._any = ANY_ORIGIN in origins
        self._origins = frozenset(origin.encode() for origin in origins)

    def lines(self, named: Mapping[bytes, bytes]) -> bytes:
        """The lines that an answer gets for a request with these fields; empty: its page may not read it."""
        if not self._origins or not (origin := named.get(_ORIGIN)):
            return b""
        if not self._any and origin.lower() not in self._origins:
            return b"vary: origin\r\n"
        fields = [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", _READABLE)]
        return lines_of([*fields, (b"vary", _ORIGIN)])

    def preflight(self, method: bytes, named: Mapping[bytes, bytes]) -> Fields | None:
        """The fields of the answer to a preflight; None: the request is not one."""
        origin = named.get(_ORIGIN, b"")
        allowed = self._any or origin.lower() in self._origins
        if method != b"OPTIONS" or not (origin and allowed and _METHOD in named):
            return None
        fields = [(b"access-control-allow-methods", _METHODS), (b"access-control-max-age", b"%d" % _KEPT_S)]
        if requested := named.get(_HEADERS):
            fields.append((b"access-control-allow-headers", requested))
        return fields
