"""The idle report's GPU hours in money."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Final

from controller.domain.telemetry.gpu_prices import GpuPrices, cost_of
from controller.store.telemetry.idle_report import DeploymentUsage, GpuSeconds
from schemas.api.history import IdleCost, UnpricedModel

_HOUR_S: Final = 3600.0


def idle_cost(by_model: Mapping[str, GpuSeconds], would_s: Mapping[str, float] | None, prices: GpuPrices) -> IdleCost:
    """What one deployment's GPU hours cost. `would_s`: GPU seconds by model that a replayed policy would have freed."""

    def cost(seconds: Mapping[str, float]) -> str | None:
        return _text(cost_of(seconds, prices))

    return IdleCost(
        claimed=cost({model: spent.claimed_s for model, spent in by_model.items()}),
        used=cost({model: spent.used_s for model, spent in by_model.items()}),
        wasted=cost({model: spent.wasted_s for model, spent in by_model.items()}),
        unknown=cost({model: spent.unknown_s for model, spent in by_model.items()}),
        would_free=None if would_s is None else cost(would_s),
    )


def total_cost(costs: Sequence[IdleCost]) -> IdleCost:
    """The sums of the amounts as they are shown, so that columns add up. None where all items lack an amount."""

    def total(amounts: Iterable[str | None]) -> str | None:
        known = [Decimal(amount) for amount in amounts if amount is not None]
        return _text(sum(known, Decimal("0.00"))) if known or not costs else None

    return IdleCost(
        claimed=total(one.claimed for one in costs),
        used=total(one.used for one in costs),
        wasted=total(one.wasted for one in costs),
        unknown=total(one.unknown for one in costs),
        would_free=total(one.would_free for one in costs),
    )


def unpriced(spent: Iterable[DeploymentUsage], prices: GpuPrices) -> list[UnpricedModel]:
    """Claimed models without a price, most GPU hours first; empty where no prices are set."""
    hours: dict[str, float] = defaultdict(float)
    for one in spent if prices else ():
        for model, seconds in one.by_model.items():
            if seconds.claimed_s and prices.of_model(model) is None:
                hours[model] += seconds.claimed_s / _HOUR_S
    return [
        UnpricedModel(model=model, gpu_hours=value)
        for model, value in sorted(hours.items(), key=lambda one: (-one[1], one[0]))
    ]


def _text(amount: Decimal | None) -> str | None:
    return None if amount is None else str(amount)
