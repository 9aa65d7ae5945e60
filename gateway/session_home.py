"""Which replica is a session's home: the same one at every gateway, and few homes move when replicas change. Pure."""

import hashlib
from collections.abc import Iterable

from controller.live.endpoints import Endpoint

_DIGEST_BYTES = 8


def home_of(session: bytes, endpoints: Iterable[Endpoint]) -> Endpoint | None:
    """The endpoint with the highest hash of session and instance (rendezvous hashing); None: there are none.

    A replica that goes moves only its own sessions. One that comes takes an equal share of each other's.
    """
    begun = hashlib.blake2b(session, digest_size=_DIGEST_BYTES)

    def weight(endpoint: Endpoint) -> bytes:
        one = begun.copy()
        one.update(b"\0" + endpoint.instance.encode())
        return one.digest()

    return max(endpoints, key=weight, default=None)
