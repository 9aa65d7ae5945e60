"""Prices of GPU hours by the name of the model, and GPU time in money.

`H100=2.50, A100 80GB=1.80, *=1`: a pattern names words of the model as its driver reports it, in either case and any
order; blanks and dashes separate words. `A100 80GB` matches an NVIDIA A100-SXM4-80GB; `A10` matches no A100.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import Final

ANY: Final = "*"
_EXAMPLE: Final = "write for example H100=2.50, A100 80GB=1.80, *=1"
_MOST: Final = Decimal(1_000_000)
_DECIMALS: Final = 6
_CENT: Final = Decimal("0.01")
_HOUR_S: Final = 3600
_SLICE: Final = "mig"


@dataclass(frozen=True, slots=True)
class GpuPrices:
    """Prices of a GPU hour by pattern, in one currency. False if there are none."""

    by_pattern: Mapping[str, Decimal]
    currency: str = ""

    def __bool__(self) -> bool:
        return bool(self.by_pattern)

    def of_model(self, model: str) -> Decimal | None:
        """The price of the matching pattern with the most words; None if no pattern matches.

        A slice of a GPU matches only patterns that name it as such (`A100 MIG=0.40`).
        """
        words = _words(model)
        best = max(
            (pattern for pattern in self.by_pattern if _fits(_words(pattern), words)),
            key=lambda pattern: (len(_words(pattern)), len(pattern), pattern),
            default=None,
        )
        if best is not None:
            return self.by_pattern[best]
        return None if _SLICE in words else self.by_pattern.get(ANY)


NO_PRICES: Final = GpuPrices({})


def _fits(pattern: frozenset[str], model: frozenset[str]) -> bool:
    return bool(pattern) and pattern <= model and (_SLICE in pattern) == (_SLICE in model)


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[^\s-]+", text.lower())) - {ANY}


def prices_of(text: str) -> dict[str, Decimal]:
    """Parses `H100=2.50, *=1`.

    Raises:
        ValueError: an entry has another form, or two entries name the same words.
    """
    prices: dict[str, Decimal] = {}
    named: dict[frozenset[str], str] = {}
    for entry in filter(None, (entry.strip() for entry in text.split(","))):
        pattern, equals, written = (part.strip() for part in entry.partition("="))
        if not equals or not pattern or (ANY in pattern and pattern != ANY) or (pattern != ANY and not _words(pattern)):
            raise ValueError(f"{entry[:60]!r}: must be MODEL=PRICE; {_EXAMPLE}")
        before = named.setdefault(_words(pattern), pattern)
        if pattern in prices or before != pattern:
            raise ValueError(f"{entry[:60]!r}: {before!r} has a price already; write each model once")
        prices[pattern] = _price(entry, written)
    return prices


def _price(entry: str, written: str) -> Decimal:
    try:
        price = Decimal(written)
    except InvalidOperation:
        raise ValueError(
            f"{entry[:60]!r}: the price must be a number with a point, and no currency; {_EXAMPLE}"
        ) from None
    exponent = price.as_tuple().exponent
    if not price.is_finite() or not 0 <= price <= _MOST or not isinstance(exponent, int) or exponent < -_DECIMALS:
        raise ValueError(f"{entry[:60]!r}: the price must be 0 to {_MOST}, with at most {_DECIMALS} decimals")
    return price


def cost_of(seconds: Mapping[str, float], prices: GpuPrices) -> Decimal | None:
    """The cost of GPU seconds by model, rounded to hundredths. None: a model has no price."""
    cost = Decimal(0)
    for model, spent in seconds.items():
        price = prices.of_model(model)
        if spent and price is None:
            return None
        cost += Decimal(spent) / _HOUR_S * (price or 0)
    return cost.quantize(_CENT, ROUND_HALF_EVEN)
