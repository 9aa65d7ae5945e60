"""One message of an agent of each kind, with all the texts that it may hold, and the same with a text changed."""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from rig.agent_messages import gpu, hello, process

_DETAILS: Final = {
    "throttle": ["power"],
    "recovery": "none",
    "pci_bus": "0000:01:00.0",
    "compute_mode": "default",
    "nvlink_peers": {"switch": 1},
    "peers": {"GPU-b": "board"},
    "xids": {"79": 1},
    "foreign": [{"pid": 1, "name": "python"}],
    "unsupported": ["power_w"],
    "errors": {"nvlinks": "gone"},
}
REPORT: Final[dict[str, Any]] = json.loads(msgspec.json.encode(process("i", "exited")).decode()) | {
    "message": "m",
    "log_line": "l",
    "image_digest": "sha256:1f2e",
    "image_repository": "a/b",
}
_GPU: Final = json.loads(msgspec.json.encode(gpu("GPU-a")).decode()) | {
    "parent": "GPU-b",
    "health_reason": "h",
    "details": _DETAILS,
}
_INVENTORY: Final = {
    "host": json.loads(msgspec.json.encode(hello().inventory.host).decode())
    | {
        "labels": {"zone": "a"},
        "engines": ["vllm"],
        "runtimes": [{"name": "docker", "version": "1", "usable": False, "reason": "r"}],
    },
    "gpus": [_GPU],
    "gpus_error": "e",
}
HELLO: Final[dict[str, Any]] = json.loads(msgspec.json.encode(hello()).decode()) | {
    "inventory": _INVENTORY,
    "processes": [REPORT],
    "advertise": "host:1",
    "told": {"term": 1, "session": 1, "proof": "p"},
    "receipts": ["r"],
}
MESSAGES: Final[list[dict[str, Any]]] = [
    HELLO,
    REPORT,
    {"type": "heartbeat", "seq": 1, "gpus": [_GPU], "gpus_error": "e"},
    {"type": "inventory", "inventory": _INVENTORY},
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
    {"type": "goodbye"},
]


def changed(value: Any, change: Callable[[str], str]) -> Iterator[Any]:
    """The value, each time with another of its texts changed; texts that are keys are, too."""
    match value:
        case str():
            yield change(value)
        case list():
            yield from (
                [*value[:n], one, *value[n + 1 :]] for n, old in enumerate(value) for one in changed(old, change)
            )
        case dict():
            yield from (value | {key: one} for key, old in value.items() for one in changed(old, change))
            yield from ({change(key) if key == name else key: value[key] for key in value} for name in value)
