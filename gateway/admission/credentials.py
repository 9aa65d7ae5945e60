"""The sender of a request: the key or the browser's session in its head, and the address that it comes from."""

from collections.abc import Iterable, Mapping
from typing import Final

from controller.live.errors import UnknownWhileAwayError
from controller.live.key_ring import KeyRing, credential_in
from controller.live.same_origin import SAFE_METHODS, is_same_origin
from http1.forwarded import Origin, TrustedProxies
from http1.protocol.heads import Fields, RequestHead, first, values

_READERS: Final = frozenset({"viewer", "operator", "admin"})  # as the API's `Access.READ`


def credentials_of(head: RequestHead) -> tuple[str, ...]:
    """The API key in a request's fields, else its sessions' credentials, of which the first valid one counts.

    A session's cookie comes with requests of any page, so that it counts for pages of this origin alone.
    """
    given = credential_in(lambda name: _decoded(values(head.fields, name.encode())))
    if not given.by_cookie or head.method.decode("latin-1") in SAFE_METHODS:
        return given.texts
    same = is_same_origin(
        fetch_site=_field(head.named, b"sec-fetch-site"),
        origin=_field(head.named, b"origin"),
        host=_field(head.named, b"host"),
    )
    return given.texts if same else ()


def keys_of(head: RequestHead) -> tuple[str, ...]:
    """The API key in a request's fields, where no session counts."""
    return credential_in(lambda name: () if name == "cookie" else _decoded(values(head.fields, name.encode()))).texts


async def may_read(keys: KeyRing, head: RequestHead) -> bool:
    """Whether a request has a key that may read what the API shows. Without the database, only keys in memory have."""
    try:
        owner = await keys.first_owner(credentials_of(head))
    except UnknownWhileAwayError:
        return False
    return owner is not None and owner.role in _READERS


def _field(named: Mapping[bytes, bytes], name: bytes) -> str:
    return named.get(name, b"").decode("latin-1")


def origin_of(proxies: TrustedProxies, peer: str, fields: Fields) -> tuple[Origin, bool]:
    """Where a request comes from, and whether a trusted proxy sent it."""
    if peer not in proxies:
        return Origin(peer), False
    forwarded = _decoded(values(fields, b"x-forwarded-for"))
    headers = {"X-Forwarded-Proto": first(fields, b"x-forwarded-proto").decode("latin-1")}
    return proxies.origin(peer, headers, forwarded), True


def _decoded(given: Iterable[bytes]) -> list[str]:
    return [value.decode("latin-1") for value in given]
