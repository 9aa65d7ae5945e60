"""Impossible readings are unknown; a period that cannot be taken is dropped; the rest of a message is taken."""

import json
import math
from typing import Any

import msgspec
import pytest

from controller.hub.agent_messages import Doubts, MalformedMessageError, read_message
from rig.agent_messages import gpu, hello
from schemas.wire import Heartbeat, Hello, ProcessSample, Readings, SamplePeriod, Samples

GPU, OTHER = "GPU-a", "GPU-b"
IMPOSSIBLE = [101, -1, 2**32, math.nan, math.inf, None, "lots", 100.5, 1e12, -0.5, 10**400]


def reading(uuid: str = GPU, **change: Any) -> dict[str, Any]:
    return {"uuid": uuid, "mean": 1.0, "max": 1.0, "used_mib": 1} | change


def process(**change: Any) -> dict[str, Any]:
    return {"instance": "i", "epoch": 1, "requests": 0, "utilization": {GPU: {"mean": 2, "max": 3}}} | change


def period(*gpus: Any, **change: Any) -> dict[str, Any]:
    one = {"seq": 1, "sampled_s": 90.0, "period_s": 10.0, "gpus": list(gpus) or [reading()], "processes": []}
    return one | change


def parsed(*periods: Any, sent_s: float = 100.0) -> tuple[tuple[SamplePeriod, ...], Doubts]:
    doubts = Doubts()
    message = read_message(json.dumps({"type": "samples", "sent_s": sent_s, "periods": periods}), doubts)
    assert isinstance(message, Samples)
    return message.periods, doubts


@pytest.mark.parametrize("value", IMPOSSIBLE)
@pytest.mark.parametrize("field", ["mean", "max"])
def test_u48_an_impossible_utilization_makes_no_sample_of_its_gpu(value: Any, field: str) -> None:
    (one,), doubts = parsed(period(reading(**{field: value}), reading(OTHER)))
    assert [g.uuid for g in one.gpus] == [OTHER]
    assert (doubts.impossible, doubts.dropped) == (1, {})


@pytest.mark.parametrize("value", [-1, 2**60, 10**400, 1e30, math.nan, "x", 1.5])
def test_u48_impossible_memory_is_unknown(value: Any) -> None:
    (one,), doubts = parsed(period(reading(used_mib=value)))
    assert (one.gpus[0].used_mib, one.gpus[0].max, doubts.impossible) == (None, 1.0, 1)


@pytest.mark.parametrize("value", [-1, 1e12, 2**31, 10**400, math.nan, math.inf, "x", 0.5])
@pytest.mark.parametrize("field", ["requests", "arrived"])
def test_u48_an_impossible_number_of_requests_is_unknown(value: Any, field: str) -> None:
    (one,), doubts = parsed(period(processes=[process(**{field: value})]))
    (sample,) = one.processes
    assert (getattr(sample, field), doubts.impossible) == (None, 1)
    assert sample.utilization == {GPU: Readings(mean=2, max=3)}


@pytest.mark.parametrize("value", IMPOSSIBLE)
def test_u48_an_impossible_figure_of_a_process_is_unknown(value: Any) -> None:
    (one,), doubts = parsed(period(processes=[process(utilization={GPU: {"mean": 1, "max": value}})]))
    assert one.processes == (ProcessSample(instance="i", epoch=1, requests=0, utilization={GPU: None}),)
    assert doubts.impossible == 1


@pytest.mark.parametrize(
    "change", [{"utilization": 101.0}, {"utilization": math.nan}, {"used_mib": -1}, {"used_mib": "x"}]
)
def test_u48_an_impossible_reading_of_a_heartbeat_is_unknown(change: dict[str, Any]) -> None:
    doubts = Doubts()
    facts = json.loads(msgspec.json.encode(gpu(GPU)).decode()) | {"utilization": 30.0, "used_mib": 5} | change
    message = read_message(json.dumps({"type": "heartbeat", "seq": 1, "gpus": [facts]}), doubts)
    assert isinstance(message, Heartbeat)
    assert message.gpus is not None
    (name,) = change
    assert (getattr(message.gpus[0], name), doubts.impossible) == (None, 1)


@pytest.mark.parametrize(
    "wrong", [{"power_w": math.nan}, {"temperature_c": -5}, {"xids": "many"}, "hot", {"pci_bus": "x" * 300}]
)
def test_u48_impossible_details_of_a_gpu_cost_the_details_alone(wrong: Any) -> None:
    doubts = Doubts()
    facts = json.loads(msgspec.json.encode(gpu(GPU)).decode()) | {"utilization": 30.0, "details": wrong}
    message = read_message(json.dumps({"type": "heartbeat", "seq": 1, "gpus": [facts]}), doubts)
    assert isinstance(message, Heartbeat)
    assert message.gpus is not None
    assert (message.gpus[0].utilization, message.gpus[0].details, doubts.impossible) == (30.0, None, 1)


def test_u48_an_impossible_reading_in_a_hello_is_unknown() -> None:
    raw = json.loads(msgspec.json.encode(hello([gpu(GPU)])).decode())
    raw["inventory"]["gpus"][0]["utilization"] = 101
    message = read_message(json.dumps(raw))
    assert isinstance(message, Hello)
    assert message.inventory.gpus is not None
    assert message.inventory.gpus[0].utilization is None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"sampled_s": 9_000.0}, "sampled_s"),
        ({"period_s": 0.1}, "period_s"),
        ({"period_s": None}, "period_s"),
        ({"period_s": math.nan}, "period_s"),
        ({"read_s": -1}, "read_s"),
        ({"read_s": 1e6}, "read_s"),
        ({"gpus": None}, "gpus"),
        ({"gpus": [reading("0")]}, "uuid"),
        ({"gpus": [reading(), reading()]}, "twice"),
        ({"gpus": [7]}, "gpus"),
        ({"processes": [process(epoch=-1)]}, "epoch"),
        ({"processes": [process(epoch=None)]}, "epoch"),
        ({"processes": [process(instance="x" * 600)]}, "instance"),
        ({"seq": -1}, "seq"),
        ({"seq": 2**70}, "seq"),
    ],
)
def test_u49_only_the_period_that_cannot_be_taken_is_dropped(change: dict[str, Any], field: str) -> None:
    kept, doubts = parsed(period(), period(**{"seq": 2} | change), period(seq=3))
    assert [one.seq for one in kept] == [1, 3]
    ((seq, reason),) = doubts.dropped.items()
    assert seq == change.get("seq", 2)
    assert field in reason


def test_impossible_readings_that_the_agent_left_out_count() -> None:
    (one,), doubts = parsed(period(impossible=4, read_s=3.5))
    assert (doubts.impossible, one.read_s) == (4, 3.5)


@pytest.mark.parametrize("sent_s", [math.nan, -1, 1e11])
def test_a_message_without_a_time_is_malformed(sent_s: float) -> None:
    with pytest.raises(MalformedMessageError, match="sent_s"):
        parsed(period(), sent_s=sent_s)


@pytest.mark.parametrize("raw", ["", "[]", "7", "{", '{"type": "samples"}', '{"type": "x"}', "[" * 100_000])
def test_other_text_is_malformed(raw: str) -> None:
    with pytest.raises(MalformedMessageError):
        read_message(raw)


@pytest.mark.parametrize("field", ["requests", "arrived"])
def test_u48_a_huge_whole_number_beside_another_impossible_figure_is_unknown(field: str) -> None:
    """Such a message is read twice, and the second look must stand numbers of any size."""
    (one,), doubts = parsed(period(reading(mean=math.nan), reading(OTHER), processes=[process(**{field: 10**400})]))
    assert getattr(one.processes[0], field) is None
    assert (doubts.impossible, doubts.dropped) == (2, {})
