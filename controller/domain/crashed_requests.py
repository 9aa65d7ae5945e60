"""Finds requests that crash engines, by what was in flight when engines ended."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

REFUSED_S: Final = 300.0  # for which a request is refused, from its last crash
KEPT_S: Final = 2 * REFUSED_S  # of each end: two ends this far apart still count together
ALONE_AFTER_S: Final = 1.0  # by then every gateway has written what it had in flight
UNDECIDED_S: Final = 5.0  # after which an end without a report holds up no request any more
# Some servers answer all their requests with an error before they exit, and an end is reported once the memory of its
# GPU is free. Both together take less than this.
ANSWERED_S: Final = 5.0
_ENOUGH: Final = 2  # crashes with other requests in flight


@dataclass(frozen=True, slots=True)
class RequestAtEnd:
    """A request that was in flight when an engine's process ended."""

    instance: str  # of the engine; `epoch`: of its start
    epoch: int
    request: bytes  # digest of key, deployment and body
    age_s: float  # since the end
    crashed: bool | None  # None: unknown yet


@dataclass(frozen=True, slots=True)
class Suspicion:
    """The verdict on a request."""

    crashes: int  # that count against it; 0: undecided, so it should wait
    left_s: float  # for which this holds


def answered_at_ends(
    errors: Mapping[tuple[str, int, bytes], float], ended: Mapping[tuple[str, int], float]
) -> list[tuple[str, int, bytes]]:
    """The requests that were answered with an error shortly before an end, and so count as in flight at it.

    `errors`: by (instance, epoch, digest), `ended`: by (instance, epoch), both in seconds of one clock.
    """
    never = float("inf")
    return [name for name, at in errors.items() if ended.get(name[:2], never) - at <= ANSWERED_S]


def suspicions(ends: Iterable[RequestAtEnd]) -> Mapping[bytes, Suspicion]:
    """The requests that are refused, and those about which a decision is due soon.

    A request is refused once it was in flight at two crashes, or alone at one. An innocent request meets the first rule
    only if it is repeated together with the request that crashes engines.
    """
    by_request: dict[bytes, list[RequestAtEnd]] = defaultdict(list)
    in_flight: Counter[tuple[str, int]] = Counter()
    for end in ends:
        by_request[end.request].append(end)
        in_flight[end.instance, end.epoch] += 1
    suspected: dict[bytes, Suspicion] = {}
    for request, its_ends in by_request.items():
        suspicion = _refusal(its_ends, in_flight) or _undecided(its_ends, in_flight)
        if suspicion is not None:
            suspected[request] = suspicion
    return suspected


def _refusal(ends: Iterable[RequestAtEnd], in_flight: Mapping[tuple[str, int], int]) -> Suspicion | None:
    crashes = sorted((end for end in ends if end.crashed), key=lambda end: end.age_s)
    for newest, end in enumerate(crashes):  # the newest crash that makes it refused
        left_s = REFUSED_S - end.age_s
        together = sum(other.age_s - end.age_s <= REFUSED_S for other in crashes[newest:])
        alone = in_flight[end.instance, end.epoch] == 1 and end.age_s >= ALONE_AFTER_S
        if left_s > 0 and (together >= _ENOUGH or alone):
            return Suspicion(together, left_s)
    return None


def _undecided(ends: Iterable[RequestAtEnd], in_flight: Mapping[tuple[str, int], int]) -> Suspicion | None:
    left_s = 0.0
    for end in ends:
        if end.crashed is None:
            left_s = max(left_s, UNDECIDED_S - end.age_s)
        elif end.crashed and in_flight[end.instance, end.epoch] == 1:
            left_s = max(left_s, ALONE_AFTER_S - end.age_s)
    return Suspicion(0, left_s) if left_s > 0 else None
