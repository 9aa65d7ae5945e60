"""Which revision a request goes to while a new one is rolled out: by its place among all requests, or its session's.

Pure. A place is a number from 0 to 1. Places below the weight belong to the new revision, so a larger weight never
moves a session back to the old one.
"""

import hashlib
from collections.abc import Iterable
from typing import Final

from controller.live.endpoints import Endpoint, RolloutRoute

_STEP: Final = 0.6180339887498949  # of the golden ratio: any run of places is spread evenly
_PERCENT: Final = 100.0


def place_of_session(session: bytes, deployment: str, revision: str) -> float:
    """The place of a session in one rollout: the same at every gateway."""
    digest = hashlib.blake2b(session, digest_size=8, key=f"{deployment} {revision}".encode()[:64]).digest()
    return int.from_bytes(digest, "big") / 2**64


def place_in_turn(number: int) -> float:
    return number * _STEP % 1.0


def belongs_to_new(rollout: RolloutRoute, place: float) -> bool:
    return rollout.weight is not None and place * _PERCENT < rollout.weight


def by_revision(
    endpoints: Iterable[Endpoint], rollout: RolloutRoute, place: float
) -> tuple[list[Endpoint], list[Endpoint]]:
    """The endpoints of the request's own revision, and the remaining ones, for when none of these can take it."""
    new: list[Endpoint] = []
    old: list[Endpoint] = []
    for endpoint in endpoints:
        (new if endpoint.revision == rollout.revision else old).append(endpoint)
    return (new, old) if belongs_to_new(rollout, place) else (old, new)
