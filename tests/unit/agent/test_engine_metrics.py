"""What is read of an engine's page of metrics, and what a page may cost."""

import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from agent.sampling.engine_metrics import (
    MOST_CHARS,
    MOST_LINES,
    ImpossibleGaugeError,
    Pressure,
    names_of,
    read_pressure,
    read_samples,
    read_tokens,
    sum_gauges,
)
from support.builders.engine_metrics import GAUGES, VLLM
from support.growth import assert_in_line
from support.standins.controller import start_order

AWKWARD = ['"', "\\", "\n", "{", "}", ",", "=", " ", "#", "a", "\u2028", "\x85", "é"]


def summed(text: str, gauges: tuple[str, ...]) -> int:
    return sum_gauges(read_samples(text, gauges), gauges)


def pressures(**gauges: tuple[str, ...]) -> Any:
    return start_order("run", request_gauges=GAUGES, **gauges)


def test_queue_cache_and_tokens_are_read_from_their_own_names() -> None:
    text = VLLM + 'vllm:kv_cache_usage_perc{engine="0"} 0.9\nvllm:kv_cache_usage_perc{engine="1"} 0.5\n'
    text += 'vllm:generation_tokens_total{engine="0"} 1e+06\nvllm:generation_tokens_total{engine="1"} 5.0\n'
    caches = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    order = pressures(
        queue_gauges=("vllm:num_requests_waiting",),
        cache_gauges=caches,
        progress_counters=("vllm:generation_tokens_total", "vllm:prompt_tokens_total"),
    )
    samples = read_samples(text, names_of(order))
    assert read_pressure(samples, order) == Pressure(4, 0.7)
    assert read_tokens(samples, order) == 1_000_005
    assert (read_pressure({}, order), read_tokens({}, order)) == (Pressure(), None), "missing is unknown, not 0"
    assert (read_pressure(samples, pressures()), read_tokens(samples, pressures())) == (Pressure(), None)
    assert (names_of(None), read_pressure(samples, None), read_tokens(samples, None)) == (frozenset(), Pressure(), None)
    with pytest.raises(ImpossibleGaugeError):
        read_pressure(read_samples("vllm:kv_cache_usage_perc 1.2\n", caches), order)
    with pytest.raises(ImpossibleGaugeError):
        read_tokens({"vllm:prompt_tokens_total": [-1]}, order)


def test_only_the_named_gauges_are_summed_over_their_labels() -> None:
    assert summed(VLLM, GAUGES) == 7
    assert summed(VLLM.replace("\n", "\r\n"), GAUGES) == 7
    assert summed(VLLM, ("llamacpp:requests_processing",)) == 0
    assert summed(VLLM, ()) == 0
    assert summed('a 0.2\na{x="1"} 5\n', ("a",)) == 6


@pytest.mark.parametrize(
    "text",
    [
        *("a 2", "a\t2 ", "a 2.0\r", "a  2 1700000000000", 'a{x="1"}2', 'a {x="1"} 2', "a{} 2", "a{ } 2", "b 1\n\na 2"),
        *('a{x="1",} 2', 'a{x = "1" , y="}" } 2', 'a{"x.y"="1"} 2', 'a{x="\\\\",y="\\""} 2'),
        *('a{x="1"} 2 # {trace="t"} 0.5', "a 2 # {} 1 1700000000", "a 2e0", "a +2"),
    ],
)  # fmt: skip
def test_all_forms_of_a_sample_are_read(text: str) -> None:
    assert read_samples(text, ("a",)) == {"a": [2]}


@pytest.mark.parametrize(
    "text",
    [
        *("a NaN", "a +Inf", "a{ 1", "a many", 'a{x\t="1",\t=",b"} 1', "a", "a ", "a{x=1} 1", "a 1_0", "a 1 x"),
        *('a{x="1}', 'a{x="1"', 'a{x="1"}', 'a{x="1" y="2"} 1'),
        'a{x="' + MOST_CHARS * "x" + '"} 1',
    ],
)  # fmt: skip
def test_an_invalid_gauge_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any message
        summed(text, ("a",))


@pytest.mark.parametrize("seed", range(20))
def test_a_page_of_prometheus_own_client_is_read_as_by_its_parser(seed: int) -> None:
    chance, registry = random.Random(seed), CollectorRegistry()  # noqa: S311 - a test
    names = ("running", "waiting", "tokens_total", "seconds_sum")
    made = [
        Gauge("running", 'A "gauge" \\ of requests.', ["model", "engine"], registry=registry),
        Gauge("waiting", "Another.\nrunning 9", ["model", "engine"], registry=registry),
        Gauge("running_by_reason", "One more.", ["model", "engine"], registry=registry),
        Counter("tokens", "A counter.", ["model", "engine"], registry=registry),
    ]
    for one in made:
        for _ in range(chance.randint(0, 4)):
            labels = ["".join(chance.choices(AWKWARD, k=chance.randint(0, 6))) for _ in range(2)]
            one.labels(*labels).inc(chance.choice([0, 1, 0.25, 3e20, float("inf"), 1e-9]))
    Histogram("seconds", "A histogram.", registry=registry).observe(1.5)
    page = generate_latest(registry).decode()
    parsed: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in names:
                parsed.setdefault(sample.name, []).append(sample.value)
    assert read_samples(page, names) == parsed


def test_a_page_has_a_bound_of_lines() -> None:
    assert read_samples("\n" * (MOST_LINES - 1) + "a 2", ("a",)) == {"a": [2]}
    with pytest.raises(ValueError, match="lines"):
        read_samples("\n" * MOST_LINES + "a 2", ("a",))


def test_another_ones_line_may_have_any_length() -> None:
    assert read_samples("# " + "x" * 10**6 + "\nb" + "x" * 10**6 + "\na 2", ("a",)) == {"a": [2]}


def test_a_page_of_many_lines_costs_in_line_with_its_length() -> None:
    def of(size: int) -> Any:
        text = size * "b 1\n"
        return lambda: [read_samples(text, ("a", *GAUGES)) for _ in range(2)]

    assert_in_line(of, 15_000)


FILLED: dict[str, Callable[[int], str]] = {
    "samples": lambda n: (n // 4) * "a 1\n",
    "labels": lambda n: "a{" + ",".join(f'x{i}="1"' for i in range(n // 10)) + "} 1",
    "open-labels": lambda n: "a{" + (n // 6) * 'x="1",',
    "open-quote": lambda n: 'a{x="' + n * "x",
    "escapes": lambda n: 'a{x="' + (n // 2) * '\\"' + '"} 1',
    "quotes": lambda n: "a{" + n * '"' + "} 1",
    "braces": lambda n: "a" + n * "{" + "} 1",
    "blanks": lambda n: 'a{x="1",' + n * " " + "y",
    "value": lambda n: "a " + n * "1" + "/",
}


@pytest.mark.parametrize("page", FILLED.values(), ids=FILLED)
def test_the_samples_of_a_page_cost_no_more_than_their_bound(page: Callable[[int], str]) -> None:
    began = time.process_time()
    with suppress(ValueError):
        read_samples(page(MOST_CHARS - 100), ("a",))
    assert time.process_time() - began < 2.0, "a tenth of a second, and more on a loaded machine"
    with pytest.raises(ValueError, match=f"at most {MOST_CHARS} characters"):
        read_samples(page(2 * MOST_CHARS), ("a",))
