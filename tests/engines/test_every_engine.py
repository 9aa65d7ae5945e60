"""What Gpuward promises of a model server, tried with every real one that runs here.

The tests of one engine share a deployment; a test that ends it leaves its start to the next one.
"""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import APIError, APIStatusError, NotFoundError

from agent.sampling.engine_metrics import read_pressure, read_samples, sum_gauges
from controller.engines.base import EngineProcess, Launch
from controller.engines.registry import engine_for
from engines.deployed import Deployed, gpuward, listed, living, until
from engines.table import ENGINES, RealEngine, needs
from support.builders.engine_specs import spec
from support.processes.up_process import Up

LONG = 3900  # tokens: many seconds
CUT = "\N{REPLACEMENT CHARACTER}"  # for a character whose last bytes the limit cuts off: not every engine shows it
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module", params=[pytest.param(one, marks=needs(one), id=one.name) for one in ENGINES])
def engine(request: pytest.FixtureRequest) -> RealEngine:
    found: RealEngine = request.param
    return found


@pytest.fixture(scope="module")
def deployed(up: Up, engine: RealEngine, models: Iterator[Path]) -> Iterator[Deployed]:
    model = engine.make_model(next(models))
    one = Deployed(up, engine, engine.manifest(model))
    with one.client:
        yield one
        one.delete()


@pytest.fixture
def tiny(deployed: Deployed) -> Deployed:
    deployed.run()
    return deployed


def ordered(tiny: Deployed) -> EngineProcess:
    """How Gpuward starts it."""
    fields = {name: value for name, value in tiny.manifest.items() if name not in ("kind", "name", "engine")}
    wanted = spec(tiny.engine.name, **fields)
    return engine_for(wanted).process(wanted, Launch(name=tiny.name))


def test_it_answers_and_streams(tiny: Deployed) -> None:
    assert [one.id for one in tiny.client.models.list()] == [tiny.name]
    whole = tiny.ask(max_tokens=60)
    assert 1 <= whole.usage.completion_tokens <= 60
    text = whole.choices[0].message.content
    assert text
    chunks = list(tiny.ask(max_tokens=60, stream=True))
    assert len(chunks) > 2
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert streamed.rstrip(CUT) == text.rstrip(CUT)
    assert tiny.client.completions.create(model=tiny.name, prompt="Once", max_tokens=4).choices[0].text
    with pytest.raises(NotFoundError):
        tiny.client.completions.create(model="unknown", prompt="Once", max_tokens=4)
    with pytest.raises(APIStatusError) as refused:  # the engine's own refusal is passed on
        tiny.ask(extra_body=dict(tiny.engine.refused))
    assert refused.value.status_code in (400, 422)


def test_answers_carry_the_deployments_name(tiny: Deployed) -> None:
    names = {tiny.ask().model, *(chunk.model for chunk in tiny.ask(stream=True))}
    assert (names == {tiny.name}) == tiny.engine.named, names


def test_gauges_show_a_stream(tiny: Deployed) -> None:
    process = ordered(tiny)
    assert bool(process.metrics.request_gauges) == tiny.engine.gauges
    if not tiny.engine.gauges:
        return
    names = (*process.metrics.request_gauges, *process.metrics.queue_gauges, *process.metrics.cache_gauges)

    def requests() -> int:
        return sum_gauges(read_samples(tiny.metrics(), names), process.metrics.request_gauges)

    assert requests() == 0
    stream, _ = tiny.stream(LONG)
    samples = read_samples(tiny.metrics(), names)
    assert sum_gauges(samples, process.metrics.request_gauges) == 1
    pressure = read_pressure(samples, process.metrics)  # type: ignore[arg-type]  # of an order it reads the gauges alone
    assert pressure.queued == 0
    assert (pressure.kv_use is not None) == tiny.engine.cache_gauge
    assert 0 <= (pressure.kv_use or 0) < 1
    stream.close()
    until(lambda: requests() == 0, "the gauges fall", 10)


def test_a_caller_that_leaves_ends_the_generation(tiny: Deployed) -> None:
    until(lambda: tiny.computing() < 0.1, "it is idle", 20)
    stream, _ = tiny.stream(LONG)
    assert tiny.computing() > 0.2
    stream.close()
    until(lambda: tiny.computing() < 0.1, "it stops computing", 4)


def test_a_wrong_flag_says_so_and_is_not_tried_for_ever(up: Up, deployed: Deployed) -> None:
    args = {**deployed.manifest["args"], "frobnicate": 3}
    wrong = Deployed(up, deployed.engine, {**deployed.manifest, "name": "wrong", "args": args})
    gpuward(up, "apply", "-f", "-", manifest=wrong.manifest)
    until(lambda: wrong.status()["phase"] == "failed", "it has failed", 600)
    status = wrong.status()
    assert status["reason"] == "engine_usage"
    assert "frobnicate" in status["message"]
    assert status["claims"] == []
    wrong.delete()


def test_death_at_a_request_is_an_error_and_a_new_start(tiny: Deployed) -> None:
    for part in ("", *tiny.engine.parts):  # as a whole, then by each part that it has
        _killed_at_a_request(tiny, part)


def _killed_at_a_request(tiny: Deployed, part: str) -> None:
    epoch, family = tiny.status()["epoch"], tiny.family()
    (victim,) = [one for one in family if part in one.name()] if part else family[:1]
    _, rest = tiny.stream(LONG)
    victim.kill()
    with pytest.raises(APIError):
        list(rest)
    until(lambda: tiny.status()["epoch"] > epoch and tiny.status()["phase"] == "running", "it runs again", 300)
    assert living(family) == []
    until(tiny.answers, "it answers again")


def test_a_stream_in_flight_is_drained_and_nothing_is_left(up: Up, tiny: Deployed) -> None:
    family = tiny.family()
    _, rest = tiny.stream(400)
    ending = threading.Thread(target=tiny.delete)
    ending.start()
    try:
        reasons = [chunk.choices[0].finish_reason for chunk in rest if chunk.choices]
    except APIError as error:
        raise AssertionError(tiny.story()) from error
    ending.join(180)
    assert reasons[-1] == "length"
    assert not ending.is_alive()
    assert living([*family, *up.engines()]) == []
    assert listed(up, "instances") == []
    assert [(gpu["claimed_mib"], gpu["claims"]) for gpu in listed(up, "gpus")] == [(0, [])] * 2
    gpuward(up, "audit")
    with pytest.raises(NotFoundError):
        tiny.ask()
