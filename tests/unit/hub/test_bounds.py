"""A message costs about what it costs to read its JSON, whatever it holds too much of."""

import json
from typing import Any

import msgspec
import pytest

from controller.hub import agent_messages as bounds
from controller.hub.agent_messages import (
    MAX_SAMPLES,
    MAX_VALUES,
    Doubts,
    MalformedMessageError,
    read_message,
)
from rig.agent_messages import gpu, hello
from schemas.wire import MAX_GPUS, MAX_PROCESSES, Heartbeat, Samples
from schemas.wire.base import MAX_ENTRIES, MAX_PERIODS
from support.growth import seconds

FACTS = json.loads(msgspec.json.encode(gpu("GPU-a")).decode())
HELLO = json.loads(msgspec.json.encode(hello([])).decode())
READING = {"uuid": "GPU-a", "mean": 1, "max": 2}
MANY = "[" + ",".join(["{}"] * 200_000) + "]"
HERE = '"here"'
LIMIT = 20  # times the reading of the JSON alone; before there were bounds it was 70 to 400 times


def period(**change: Any) -> dict[str, Any]:
    return {"seq": 1, "sampled_s": 90.0, "period_s": 10.0, "gpus": [READING]} | change


def samples(*periods: Any) -> dict[str, Any]:
    return {"type": "samples", "sent_s": 100.0, "periods": periods}


def inventory(**change: Any) -> dict[str, Any]:
    return {"type": "inventory", "inventory": HELLO["inventory"] | change}


def heartbeat(*gpus: Any) -> dict[str, Any]:
    return {"type": "heartbeat", "seq": 1, "gpus": gpus}


HOST = HELLO["inventory"]["host"]
HOLDERS: dict[str, dict[str, Any]] = {
    "heartbeat.gpus": {"type": "heartbeat", "seq": 1, "gpus": "here"},
    "inventory.gpus": inventory(gpus="here"),
    "host.labels": inventory(host=HOST | {"labels": "here"}),
    "host.engines": inventory(host=HOST | {"engines": "here"}),
    "host.runtimes": inventory(host=HOST | {"runtimes": "here"}),
    "hello.processes": HELLO | {"processes": "here"},
    "hello.receipts": HELLO | {"receipts": "here"},
    "samples.periods": {"type": "samples", "sent_s": 100.0, "periods": "here"},
    "period.gpus": samples(period(gpus="here")),
    "period.processes": samples(period(processes="here")),
    "process.utilization": samples(period(processes=[{"instance": "i", "epoch": 1, "utilization": "here"}])),
    "details.foreign": heartbeat(FACTS | {"details": {"foreign": "here"}}),
    "details.peers": heartbeat(FACTS | {"details": {"peers": "here"}}),
    "unknown": {"type": "goodbye", "unknown": "here"},
}


def attempt(raw: str) -> str:
    try:
        read_message(raw)
    except MalformedMessageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("holder", HOLDERS)
def test_too_many_entries_cost_no_validation(holder: str) -> None:
    raw = json.dumps(HOLDERS[holder]).replace(HERE, MANY)
    read_s, parsed_s = seconds(lambda: json.loads(MANY)), seconds(lambda: attempt(raw))
    assert parsed_s < LIMIT * read_s, f"{parsed_s / read_s:.0f} times"


@pytest.mark.parametrize("gpus", [0, MAX_GPUS])
def test_lists_within_their_bounds_have_a_bound_together(gpus: int) -> None:
    many = [period(seq=n, gpus=[{}] * gpus, processes=[{}] * (MAX_PROCESSES - gpus)) for n in range(20)]
    raw = json.dumps(samples(*many))
    read_s, parsed_s = seconds(lambda: json.loads(raw)), seconds(lambda: attempt(raw))
    assert f"at most {MAX_VALUES} values" in attempt(raw)
    assert parsed_s < LIMIT * read_s, f"{parsed_s / read_s:.0f} times"


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (heartbeat(*[FACTS] * (MAX_GPUS + 1)), "gpus: expected `array` of length <= 256"),
        (inventory(gpus=[FACTS] * (MAX_GPUS + 1)), "inventory.gpus: expected `array` of length <= 256"),
        (HELLO | {"processes": [1] * (MAX_PROCESSES + 1)}, "processes: expected `array` of length <= 10000"),
        (HELLO | {"receipts": ["x"] * (MAX_PROCESSES + 1)}, "receipts: expected `array` of length <= 10000"),
        (
            inventory(host=HOST | {"labels": {str(n): "" for n in range(65)}}),
            "labels: expected `object` of length <= 64",
        ),
        (samples(*[period()] * (MAX_PERIODS + 1)), "periods: expected `array` of length <= 10000"),
        ([], "message: must be a JSON object, got list"),
        (heartbeat() | {"type": "x" * 1_000_000}, "..."),
        (HELLO | {"advertise": "x" * 1_000_000}, "advertise: expected `str` of length <= 512"),
        (
            {"type": "result", "command_id": 1, "outcome": "accepted", "message": "x" * 2**21},
            "message: expected `str` of length <= 1048576",
        ),
    ],
)
def test_what_is_wrong_is_told_briefly(message: Any, told: str) -> None:
    why = attempt(json.dumps(message))
    assert told in why
    assert len(why) < 600


def test_a_period_with_too_many_entries_is_dropped_and_the_others_are_taken() -> None:
    doubts = Doubts()
    large = period(seq=2, gpus=[READING] * (MAX_GPUS + 1))
    message = read_message(json.dumps(samples(period(), large, period(seq=3))), doubts)
    assert isinstance(message, Samples)
    assert [one.seq for one in message.periods] == [1, 3]
    assert doubts.dropped == {2: "gpus: expected `array` of length <= 256"}


def test_details_with_too_many_entries_are_left_out_and_the_gpu_is_taken() -> None:
    doubts = Doubts()
    details = {"peers": {f"GPU-{n}": "board" for n in range(MAX_ENTRIES + 1)}}
    message = read_message(json.dumps(heartbeat(FACTS | {"details": details})), doubts)
    assert isinstance(message, Heartbeat)
    assert message.gpus is not None
    assert (message.gpus[0].details, doubts.impossible) == (None, 1)


@pytest.mark.parametrize("value", ["{}", "[]", '"a"', "1", '{"a":1}'])
def test_more_values_than_memory_should_hold_are_not_even_read(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "agent_message", None)
    raw = f'{{"type": "goodbye", "unknown": [{",".join([value] * 1_000_001)}]}}'
    assert attempt(raw) == f"message: must have at most {MAX_VALUES} values"


def test_a_period_that_holds_too_much_alone_is_dropped_and_not_sent_for_ever() -> None:
    wide = {f"GPU-{n}": None for n in range(MAX_GPUS)}
    processes = [{"instance": f"i-{n}", "epoch": 1, "utilization": wide} for n in range(MAX_SAMPLES // MAX_GPUS + 1)]
    doubts = Doubts()
    taken = read_message(json.dumps(samples(period(seq=7, processes=processes), period(seq=8))), doubts)
    assert isinstance(taken, Samples)
    assert [one.seq for one in taken.periods] == [8]
    assert "entries" in doubts.dropped[7]
