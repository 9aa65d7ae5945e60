"""Which credential a request carries: the same for the gateway and the API behind it. Pure.

A key is given as `Authorization: Bearer`, `x-api-key` or `api-key`, and a browser's session in a cookie. A key that is
given counts alone, be it right or wrong. `Authorization` of another scheme, or an empty one, is not for Gpuward: a
reverse proxy with a login of its own sends `Basic` with every request.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from controller.live.same_origin import cookie_in
from controller.store.access.key_reads import (
    SECURE_SESSION_COOKIE,
    SESSION_COOKIE,
    key_credential,
    session_credential,
)

_KEY_FIELDS: Final = ("x-api-key", "api-key")
# Behind TLS the name itself vouches that no other host has set the cookie, so it counts first.
SESSION_COOKIES: Final = (SECURE_SESSION_COOKIE, SESSION_COOKIE)
ValuesOf = Callable[[str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Credential:
    """What is checked: a `key_credential`, or a `session_credential` for each of the session's cookies."""

    texts: tuple[str, ...] = ()  # the first one that is valid counts; an empty one cannot be valid
    by_cookie: bool = False  # a browser sends it with whatever page asks


def credential_in(values_of: ValuesOf) -> Credential:
    """The credential of a request; `values_of` gives all values of a field by its name in lower case."""
    for authorization in values_of("authorization"):
        scheme, _, key = authorization.strip().partition(" ")
        if scheme.lower() == "bearer":
            return Credential((key_credential(key.strip()),))
    given = next((value for name in _KEY_FIELDS for value in values_of(name) if value), None)
    if given is not None:
        return Credential((key_credential(given),))
    tokens = session_tokens(values_of("cookie"))
    return Credential(tuple(map(session_credential, tokens)), by_cookie=True) if tokens else Credential()


def session_tokens(cookies: Sequence[str]) -> list[str]:
    """What the session's cookies hold in these `Cookie` fields; the first valid one counts.

    A browser may have both: one that is over, from before its way here had TLS or lost it, hides no valid one.
    """
    together = "; ".join(cookies)
    return [token for name in SESSION_COOKIES if (token := cookie_in(together, name))]
