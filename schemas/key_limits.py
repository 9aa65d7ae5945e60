"""Limits of API keys, and what gateways and the store say to each other about shares of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Final

MINUTE_S: Final = 60.0


class LimitKind(StrEnum):
    """What a limit counts."""

    REQUESTS = "requests"  # per minute
    TOKENS = "tokens"  # per minute
    DAY = "day"  # tokens per day of UTC
    PARALLEL = "parallel"  # requests at once

    def per_second(self, capacity: float) -> float:
        """How fast a bucket of this kind refills."""
        return capacity / MINUTE_S if self in (LimitKind.REQUESTS, LimitKind.TOKENS) else 0.0


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What a key may use. None: without a limit."""

    models: tuple[str, ...] = ()  # globs of the names that it may ask for; empty: all
    rpm: int | None = None  # requests per minute
    tpm: int | None = None  # tokens per minute, of prompts and answers
    tokens_per_day: int | None = None  # the same, per day of UTC
    parallel: int | None = None  # requests at once

    def allows(self, model: str) -> bool:
        """Whether the key may ask for a model of this name."""
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
    """What a gateway says of its share of one limit.

    Totals count from the gateway's start, so that an ask whose answer was lost counts nothing twice.
    """

    key: str  # id of the key
    kind: LimitKind  # of the limit
    spent: float  # total of what requests used here; of `PARALLEL`, the requests under way
    minted: float  # total of what the gateway gave itself while the database was away
    want: int  # how much it wants to hold; less than it holds gives the rest back
    ahead: int = 0  # the part of `want` that no request waits for yet. Half of what is left stays for other gateways


@dataclass(frozen=True, slots=True)
class ShareGrant:
    """The store's answer to an ask."""

    key: str  # id of the key
    kind: LimitKind  # of the limit
    held: float  # the gateway's share, after `spent` of the ask
    level: float  # what is left for all gateways; negative: owed
    capacity: int  # the limit as the store knows it


@dataclass(frozen=True, slots=True)
class SharesAnswer:
    """The store's answer to all asks of one gateway."""

    fraction: float  # the part of each limit's refill that it may use while the database is away
    grants: tuple[ShareGrant, ...]  # one for each ask; those of keys or limits that are gone are missing
    day_ends_s: float  # seconds until the UTC day ends
