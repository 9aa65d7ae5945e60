"""Prices of GPU hours: which one a model has, what the setting refuses, and amounts."""

from decimal import Decimal

import pytest

from controller.domain.telemetry.gpu_prices import GpuPrices, cost_of, prices_of
from controller.settings import ControllerSettings

PRICES = GpuPrices(
    prices_of("H100=2.50, A100=1.20, a100 80gb = 1.80, A100-SXM4-80GB=1.9, A10=0.5, A100 MIG=0.3"), "EUR"
)


@pytest.mark.parametrize(
    ("model", "price"),
    [
        ("NVIDIA H100 80GB HBM3", "2.50"),
        ("NVIDIA A100-SXM4-40GB", "1.20"),
        ("NVIDIA A100 80GB PCIe", "1.80"),
        ("NVIDIA A100-SXM4-80GB", "1.9"),
        ("NVIDIA A10", "0.5"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "0.3"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA GH200 480GB", None),
        ("Tesla T4", None),
        ("", None),
    ],
)
def test_a_model_has_the_most_specific_price(model: str, price: str | None) -> None:
    assert PRICES.of_model(model) == (None if price is None else Decimal(price))


def test_a_star_is_every_other_gpu_but_no_slice() -> None:
    prices = GpuPrices(prices_of("H100=2,*=1"), "EUR")
    assert prices.of_model("Tesla T4") == 1
    assert prices.of_model("NVIDIA H100 NVL") == 2
    assert prices.of_model("NVIDIA A100-SXM4-80GB MIG 1g.10gb") is None


@pytest.mark.parametrize(
    ("prices", "currency", "says"),
    [
        ("H100", "EUR", "gpu_hour_prices.*must be MODEL=PRICE"),
        ("=1", "EUR", "must be MODEL=PRICE"),
        ("A*=1", "EUR", "must be MODEL=PRICE"),
        ("-=1", "EUR", "must be MODEL=PRICE"),
        ("H100=EUR 2", "EUR", "must be a number"),
        ("H100=-1", "EUR", "must be 0 to"),
        ("H100=nan", "EUR", "must be 0 to"),
        ("H100=1e9", "EUR", "must be 0 to"),
        ("H100=0.0000001", "EUR", "decimals"),
        ("H100 80GB=1, 80gb-h100=2", "EUR", "has a price already"),
        ("*=1, *=2", "EUR", "has a price already"),
        ("*=1", "", "is required with gpu_hour_prices; set GPUWARD_CURRENCY"),
        ("*=1", "€", "currency.*three capital letters"),
    ],
)
def test_a_wrong_setting_says_what_to_write(prices: str, currency: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"(?s){says}"):
        ControllerSettings.model_validate({"gpu_hour_prices": prices, "currency": currency})


def test_prices_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUWARD_GPU_HOUR_PRICES", "H100=2.50, *=0")
    monkeypatch.setenv("GPUWARD_CURRENCY", "EUR")
    prices = ControllerSettings().prices
    assert prices
    assert prices.currency == "EUR"
    assert prices.of_model("NVIDIA H100 NVL") == Decimal("2.50")
    assert prices.of_model("Tesla T4") == 0


def test_seconds_of_several_models_are_summed_and_rounded_once() -> None:
    prices = GpuPrices(prices_of("A=0.01, B=2"), "EUR")
    assert str(cost_of({"A": 1800.0, "B": 3600.0}, prices)) == "2.00", "2.005, halves to even"
    assert str(cost_of({"A": 5400.0}, prices)) == "0.02"
    assert str(cost_of({}, prices)) == "0.00"


def test_any_time_without_a_price_is_unknown() -> None:
    assert cost_of({"A": 3600.0, "T4": 1.0}, GpuPrices(prices_of("A=1"), "EUR")) is None
    assert str(cost_of({"A": 3600.0, "T4": 0.0}, GpuPrices(prices_of("A=1"), "EUR"))) == "1.00"
