"""Why a worker is not in use, in words. Pure."""

from typing import TYPE_CHECKING, Final

from schemas.worker_conditions import CONTAINERS, is_trouble

if TYPE_CHECKING:  # slow to import
    from schemas.api.envelopes import Condition
    from schemas.api.workers import WorkerView

_OF_STATES: Final = {
    "joining": "The worker has not reported its GPUs yet.",
    "unreachable": "The worker does not answer.",
    "lost": "The worker has not answered for so long that its instances start elsewhere.",
    "cordoned": "An operator cordoned the worker: nothing new is placed on it.",
    "draining": "An operator drains the worker: its instances move elsewhere.",
    "drained": "An operator drained the worker: nothing runs on it.",
}


def worker_reason(view: "WorkerView") -> str:
    """The code of its state, else of its first condition in trouble; empty without one."""
    return view.status.reason or next((condition.reason for condition in _trouble(view)), "")


def worker_why(view: "WorkerView") -> str:
    """The message of that condition, else the meaning of the code, else of the state; empty for a worker in use."""
    from schemas.host_reasons import WORKERS  # noqa: PLC0415 - few verbs need it

    reason = worker_reason(view)
    message = next((c.message for c in _trouble(view) if c.reason == reason and c.message), "")
    known = WORKERS.get(reason)
    return message or (known.meaning if known else reason.replace("_", " ")) or _OF_STATES.get(view.status.state, "")


def _trouble(view: "WorkerView") -> "list[Condition]":
    """Without containers, which most hosts do not need."""
    return [condition for condition in view.status.conditions if is_trouble(condition) and condition.type != CONTAINERS]
