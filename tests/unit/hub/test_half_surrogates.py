"""Half of a surrogate pair, which JSON can name and the database cannot hold, reaches no write."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from controller.hub.bounds import MalformedMessageError
from controller.hub.validate import parse_message
from support.standins.agent import gpu, hello, process

HALF = "x\ud800y"
REPORT = json.loads(process("i", "exited").model_dump_json()) | {"message": "m", "log_line": "l"}
HELLO = json.loads(hello([gpu("GPU-a")]).model_dump_json()) | {"processes": [REPORT], "advertise": "host:1"}
MESSAGES: list[dict[str, Any]] = [
    HELLO,
    REPORT,
    {"type": "heartbeat", "seq": 1, "gpus": HELLO["inventory"]["gpus"], "gpus_error": "e"},
    {"type": "inventory", "inventory": HELLO["inventory"]},
    {"type": "result", "command_id": 1, "outcome": "refused", "code": "bad_command", "message": "m"},
    {
        "type": "samples",
        "sent_s": 100.0,
        "periods": [
            {
                "seq": 1,
                "sampled_s": 90.0,
                "period_s": 10.0,
                "gpus": [{"uuid": "GPU-a", "mean": 1, "max": 2}],
                "processes": [{"instance": "i", "epoch": 1, "rank": 0, "utilization": {"GPU-a": None}}],
            }
        ],
    },
]


def spoilt(value: Any) -> Iterator[Any]:
    """The value, each time with another of its texts spoilt; texts that are keys are, too."""
    match value:
        case str():
            yield HALF
        case list():
            yield from ([*value[:n], bad, *value[n + 1 :]] for n, one in enumerate(value) for bad in spoilt(one))
        case dict():
            yield from (value | {key: bad} for key, one in value.items() for bad in spoilt(one))
            yield from ({HALF if key == name else key: value[key] for key in value} for name in value)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: str(one["type"]))
def test_no_message_with_one_is_taken_as_it_is(message: dict[str, Any]) -> None:
    refused = 0
    assert parse_message(json.dumps(message))
    for bad in spoilt(message):
        try:
            taken = parse_message(json.dumps(bad))
        except MalformedMessageError:
            refused += 1
        else:
            taken.model_dump_json().encode()  # raises where one is left
    assert refused
