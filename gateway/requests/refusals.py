"""Why no replica answers: the gateway's own errors. Where waiting helps, they have a `Retry-After`."""

from collections.abc import Collection
from typing import Any, Final

import orjson

from controller.live.endpoints import Endpoint, Model, Trouble
from gateway.errors import NO_RETRY, GatewayError
from gateway.routing.retry_rules import OVERLOADED, TIMED_OUT, Settled
from gateway.routing.routing_table import RoutingTable
from http1.protocol.connection_rules import Refusal

_RETRY_AFTER_S: Final = "2"
_NO_CAPACITY: Final = "no_capacity"
_MOST_RETRY_S: Final = 60
_QUEUE_FULL: Final = "queue_full"
_TOO_MANY: Final = 429
_REFUSED: Final = 400
_ENGINE_ERROR: Final = "engine_error"
_MOST_MESSAGE: Final = 1000  # characters of an engine's own
_OPERATORS: Final = ("admin", "operator")


def settled_error(settled: Settled, endpoint: Endpoint, detail: str) -> GatewayError:
    """The error for a request that an engine may have received, or that this process cannot send."""
    if settled.code == OVERLOADED:
        return GatewayError(503, OVERLOADED, "the gateway can open no more connections", headers={"Retry-After": "1"})
    what = "gave no answer in time" if settled.code == TIMED_OUT else "ended before it answered"
    return GatewayError(
        settled.status or 502,
        settled.code,
        f"model: instance {endpoint.instance} of {endpoint.model!r} {what}; the request may have run, so it was not "
        "sent to another one",
        details={"instance": endpoint.instance, "cause": detail},
        headers=NO_RETRY,
    )


def broken_off(settled: Settled, endpoint: Endpoint, detail: str) -> GatewayError:
    """The error for an answer of which a part has reached the client."""
    what = f"the answer of {endpoint.model!r} broke off ({settled.code}); it is incomplete and is not repeated"
    details = {"instance": endpoint.instance, "cause": detail}
    return GatewayError(504 if settled.code == TIMED_OUT else 502, settled.code, what, details=details)


def late_refusal(status: int, body: bytes) -> GatewayError:
    """The error for an engine's answer without events, behind comments. `body`: its beginning."""
    if status < _REFUSED:
        return GatewayError(502, _ENGINE_ERROR, "the engine sent no events, after the stream had started with comments")
    message = f"the engine answered {status}, after the stream had started with comments"
    if why := _engines_message(body):
        message = f"{message}: {why}"
    return GatewayError(status, _ENGINE_ERROR, message)


def _engines_message(body: bytes) -> str:
    """The message of an engine's error; empty if unknown."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    for name in ("error", "message", "detail"):
        content = content.get(name, content) if isinstance(content, dict) else content
    return content[:_MOST_MESSAGE] if isinstance(content, str) else ""


def model_not_found(model: str) -> GatewayError:
    """404: no deployment has this name, or the key may not use it."""
    message = f"model: no deployment is named {model!r}; GET /v1/models lists what requests may ask for"
    return GatewayError(404, "model_not_found", message, param="model")


def adapter_not_loaded(adapter: str, model: str) -> GatewayError:
    """503: replicas run, but those of the revision with this adapter do not yet."""
    message = f"model: no running instance of {model!r} has loaded its adapter {adapter!r} yet; try again in a moment"
    headers = {"Retry-After": _RETRY_AFTER_S}
    return GatewayError(503, "model_not_running", message, headers=headers, param="model")


def no_replica_error(model: str, table: RoutingTable, tried: Collection[str]) -> GatewayError:
    if not table.knows(model):
        return model_not_found(model)
    stopped = table.stopped(model)
    if stopped is None:
        return GatewayError(
            503,
            "model_not_running",
            f"model: no instance of {model!r} that was asked is reachable; see: gpuward describe deployment {model}",
            details={"tried": list(tried)},
            headers={"Retry-After": _RETRY_AFTER_S},
        )
    details: dict[str, Any] = {"start": stopped.remedy(model)}
    if stopped.source != "policy":
        why = "by its user" if stopped.source == "user" else "since it asks for no replicas"
        message = f"model: {model!r} is stopped {why}; to start it: {details['start']}"
        return GatewayError(503, "stopped", message, details=details, headers=NO_RETRY)
    who = f"policy {stopped.policy}" if stopped.policy else "its inline policy"
    return GatewayError(
        503,
        "stopped_by_policy",
        f"model: {model!r} was stopped by {who}, and waiting does not start it; to start it: {details['start']}",
        details=details | {"policy": stopped.policy},
        headers=NO_RETRY,
    )


def trouble_error(trouble: Trouble, model: str, role: str) -> GatewayError:
    """503: the model cannot run now. Only operators' keys get the reason."""
    details = {"why": trouble.why} if role in _OPERATORS and trouble.why else {}
    after_s = min(max(round(trouble.again_in_s), 1), _MOST_RETRY_S)
    if trouble.code == _NO_CAPACITY:
        what = "cannot be placed now: no worker has what it needs"
    else:
        what = "failed three times in a row, at its start or soon after"
    see = f"see: gpuward describe deployment {model}"
    headers = {"Retry-After": str(after_s)}
    return GatewayError(503, trouble.code, f"model: {model!r} {what}; {see}", details=details, headers=headers)


def refuses(error: GatewayError) -> bool:
    """True for what usage counts as refused: by a limit of the key, or by a full queue."""
    return error.status == _TOO_MANY or error.code == _QUEUE_FULL


def queue_full(model: str, waiting: int, after_s: int) -> GatewayError:
    message = f"model: {model!r} is at its limit and {waiting} requests wait; try again in {after_s} s"
    return GatewayError(503, _QUEUE_FULL, message, headers={"Retry-After": str(after_s)})


def waited_too_long(model: str, known: Model | None) -> GatewayError:
    wait = f"{known.limits.queue.wait:g} s" if known is not None else "its time"
    message = f"model: the request waited {wait} for a replica of {model!r}; try again later"
    return GatewayError(503, "waited_too_long", message)


def not_served(refusal: Refusal) -> GatewayError:
    """The error for a request that gets no connection: 429 where its key, 503 where all keys hold too much."""
    match refusal:
        case Refusal.CLIENT:
            message = "too many bodies of this key are incomplete; wait until they are sent"
            return GatewayError(429, "too_much_in_flight", message)
        case Refusal.SHARE:
            message = "connections are few and this key has its equal part of them; wait until others are answered"
            return GatewayError(429, "too_much_in_flight", message)
        case Refusal.ALL:
            return GatewayError(503, "overloaded", "too many requests are being answered; try again in a moment")
