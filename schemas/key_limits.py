"""Limits of API keys, and the exchange of their shares between gateways and the store."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Final

MINUTE_S: Final = 60.0


class LimitKind(StrEnum):
    """The quantity that a limit counts."""

    REQUESTS = "requests"  # per minute
    TOKENS = "tokens"  # per minute
    DAY = "day"  # tokens per day of UTC
    PARALLEL = "parallel"  # requests at once

    def per_second(self, capacity: float) -> float:
        """The refill of a bucket of this kind."""
        return capacity / MINUTE_S if self in (LimitKind.REQUESTS, LimitKind.TOKENS) else 0.0


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Limits of a key; None: no limit."""

    models: tuple[str, ...] = ()  # globs of names; empty: all
    rpm: int | None = None  # requests per minute
    tpm: int | None = None  # tokens per minute, of prompts and answers
    tokens_per_day: int | None = None  # tokens per day of UTC, of prompts and answers
    parallel: int | None = None  # requests at once

    def allows(self, model: str) -> bool:
        return not self.models or any(fnmatchcase(model, glob) for glob in self.models)

    def capacities(self) -> Mapping[LimitKind, int]:
        kinds = {
            LimitKind.REQUESTS: self.rpm,
            LimitKind.TOKENS: self.tpm,
            LimitKind.DAY: self.tokens_per_day,
            LimitKind.PARALLEL: self.parallel,
        }
        return {kind: limit for kind, limit in kinds.items() if limit is not None}


NO_LIMITS: Final = KeyLimits()
CAPACITIES: Final = attrgetter("rpm", "tpm", "tokens_per_day", "parallel")  # in the order of `LimitKind`
NO_CAPACITIES: Final = CAPACITIES(NO_LIMITS)


@dataclass(frozen=True, slots=True)
class ShareAsk:
    """A gateway's request for its share of one limit.

    Totals count from the gateway's start, so an ask whose answer was lost counts nothing twice.
    """

    key: str  # id of the key
    kind: LimitKind  # of the limit
    spent: float  # total that requests used here; for `PARALLEL`, the requests under way
    minted: float  # total that the gateway took without the database
    want: int  # tokens to hold; if it holds more, it returns the rest
    ahead: int = 0  # the part of `want` without a waiting request. Half of the remaining tokens stay for other gateways


@dataclass(frozen=True, slots=True)
class ShareGrant:
    """The answer to an ask."""

    key: str  # id of the key
    kind: LimitKind  # of the limit
    held: float  # the gateway's share, after `spent`
    level: float  # tokens left for all gateways; negative: owed
    capacity: int  # the limit in the store


@dataclass(frozen=True, slots=True)
class SharesAnswer:
    """The answer to all asks of one gateway."""

    fraction: float  # the part of each limit's refill that it may use without the database
    grants: tuple[ShareGrant, ...]  # without those for keys or limits that are gone
    day_ends_s: float  # seconds until the UTC day ends
