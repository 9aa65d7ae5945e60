"""Events as the API returns them."""

from typing import Any

from schemas.api.view import Moment, View


class Subject(View, frozen=True, kw_only=True):
    """An object that an event concerns, with the name that it had then; empty where that was not known."""

    kind: str
    name: str = ""
    uid: str


class EventView(View, frozen=True, kw_only=True):
    """An append-only fact: a reason code with evidence, linked to the objects that it concerns.

    Attributes:
        objects: `kind:uid` of each subject.
        subjects: the same objects with their names, which stay true after a deletion.
        durations: what took how long, in seconds: of `running` each phase of the start, and `total`.
        actor: what did it: `key:NAME`, `policy:NAME`, `agent:NAME`, `token:ID`, `leader`, `controller`, `host`; empty
            in events of earlier versions.
        request_id: of the API request that did it, as its answer's `X-Request-ID` says.
    """

    id: int
    at: Moment
    reason: str
    message: str
    evidence: dict[str, Any] = {}
    durations: dict[str, float] = {}
    objects: list[str] = []
    subjects: list[Subject] = []
    actor: str = ""
    request_id: str = ""
