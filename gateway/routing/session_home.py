"""Which replica is a session's home: the same at every gateway, and few homes move when replicas change. Pure."""

import hashlib
from collections.abc import Iterable
from typing import Final

from controller.live.endpoints import Endpoint

_DIGEST_BYTES: Final = 8
_MOST_KEPT: Final = 4096  # sessions of hashed model
_LONGEST_KEPT: Final = 256  # bytes of a session's id


def home_of(session: bytes, endpoints: Iterable[Endpoint]) -> Endpoint | None:
    """The endpoint with the highest hash of session and instance (rendezvous hashing); None without endpoints.

    A replica that goes moves only its own sessions. A new replica takes an equal share of each other's.
    """
    of_session = hashlib.blake2b(session, digest_size=_DIGEST_BYTES)

    def weight(endpoint: Endpoint) -> bytes:
        hashed = of_session.copy()
        hashed.update(b"\0" + endpoint.instance.encode())
        return hashed.digest()

    return max(endpoints, key=weight, default=None)


class SessionHomes:
    """The homes of one model's sessions. The home of a known session is kept while the same replicas run."""

    def __init__(self, replicas: Iterable[Endpoint]) -> None:
        self._replicas: dict[str, Endpoint] = {}
        self._kept: dict[bytes, str] = {}
        self.update(replicas)

    def update(self, replicas: Iterable[Endpoint]) -> None:
        before, self._replicas = self._replicas, {hashed.instance: hashed for hashed in replicas}
        if before.keys() != self._replicas.keys():
            self._kept.clear()

    def of(self, session: bytes) -> Endpoint | None:
        kept = self._kept.get(session)
        if kept is not None:
            return self._replicas[kept]
        home = home_of(session, self._replicas.values())
        if home is not None and len(session) <= _LONGEST_KEPT:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[session] = home.instance
        return home
