"""The stream of `GET /watch`, and the messages of `GET /live`, a WebSocket with several topics."""

from typing import Annotated, Any, Final

import msgspec

from schemas.api.view import Literal, View

_OBJECTS: Final = [
    {"$ref": f"#/components/schemas/{name}"} for name in ("DeploymentView", "InstanceView", "WorkerView", "PolicyView")
]


class WatchEvent(View, frozen=True, kw_only=True):
    """One server-sent event: `snapshot` first, then `changed` or `gone` objects."""

    type: Literal["snapshot", "changed", "gone"]
    object: Annotated[Any, msgspec.Meta(extra_json_schema={"anyOf": [*_OBJECTS, {"type": "object"}]})]


class LiveMessage(View, frozen=True, kw_only=True):
    """What the server sends: a message of a topic, with the id under which it was opened.

    The topic's own fields stand beside `id` and `type`.

    Attributes:
        id: of the topic; None: an error of a message that names none.
        type: `snapshot`, `changed` or `gone` (objects), `gpus` or `round` (gpus), `opened`, `event`, `log`
            (of an instance), `sources` or `lines` (of a deployment's logs); the last one of an id is `end` or `error`.
            `pong` answers a ping.
        object: of `snapshot`, `changed` and `gone`: as in `GET /watch`.
        event: of `event`: as in `GET /events`.
        text: of `log`: a part of the log, which need not end with a line.
        sources: of `sources`: `instance`, `rank` and `epoch` of each log that is followed from now on.
        items: of `lines`: as the objects of `GET /deployments/{name}/logs?format=json`.
        uuid: of `gpus`: the GPUs in order.
        index: of `round`: which of these the columns tell of; None: all.
        utilization, used_mib, claimed_mib: columns of `gpus` and `round`; null: unknown. `utilization` in percent. A
            round has those columns alone in which something has changed.
        reason: of `end`: `closed` by the client, or `finished`.
        error: of `error`: as in an error response.
    """

    id: int | None
    type: Literal[
        "snapshot",
        "changed",
        "gone",
        "gpus",
        "round",
        "opened",
        "event",
        "log",
        "sources",
        "lines",
        "end",
        "error",
        "pong",
    ]
    object: dict[str, Any] | None = None
    event: dict[str, Any] | None = None
    text: str | None = None
    sources: list[dict[str, Any]] | None = None
    items: list[dict[str, Any]] | None = None
    uuid: list[str] | None = None
    index: list[int] | None = None
    utilization: list[int | None] | None = None
    used_mib: list[int | None] | None = None
    claimed_mib: list[int] | None = None
    reason: Literal["closed", "finished"] | None = None
    error: dict[str, Any] | None = None
