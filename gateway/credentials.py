"""Who sends a request: the key in its head, and the address that it comes from."""

from collections.abc import Iterable, Mapping
from random import getrandbits
from string import ascii_letters, digits
from typing import Final

from http1.forwarded import Origin, TrustedProxies
from http1.head import Fields, first, values

_KEY_FIELDS: Final = (b"x-api-key", b"api-key")
_ID_BYTES: Final = (ascii_letters + digits + "._-").encode()
_LONGEST_ID: Final = 64


def key_of(named: Mapping[bytes, bytes]) -> str:
    """The API key in a request's fields; empty without one."""
    scheme, _, key = named.get(b"authorization", b"").partition(b" ")
    if scheme:
        return key.strip().decode("latin-1") if scheme.lower() == b"bearer" else ""
    return next((value.decode("latin-1") for name in _KEY_FIELDS if (value := named.get(name))), "")


def request_id_of(named: Mapping[bytes, bytes]) -> str:
    """The client's request id in a request's fields if it is valid, else a new one."""
    given = named.get(b"x-request-id")
    if given and len(given) <= _LONGEST_ID and not given.translate(None, _ID_BYTES):
        return given.decode()
    return f"{getrandbits(64):016x}"  # an id, not a secret


def origin_of(proxies: TrustedProxies, peer: str, fields: Fields) -> tuple[Origin, bool]:
    """Where a request comes from, and whether a trusted proxy sent it."""
    if peer not in proxies:
        return Origin(peer), False
    forwarded = _text(values(fields, b"x-forwarded-for"))
    headers = {"X-Forwarded-Proto": first(fields, b"x-forwarded-proto").decode("latin-1")}
    return proxies.origin(peer, headers, forwarded), True


def _text(given: Iterable[bytes]) -> list[str]:
    return [value.decode("latin-1") for value in given]
