"""A route: path, handler, access and models. The route table builds the application and /openapi.json."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Literal

from aiohttp import web

from schemas.api.access import Role
from schemas.api.view import View

_PATTERN: Final = re.compile(r"\{(\w+):[^}]*\}")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Access(Enum):
    """The roles that may call a route. Every route states it; there is no default."""

    OPEN = frozenset[Role]()  # without a key: the handler authenticates, or its answer is public
    READ = frozenset[Role]({"viewer", "operator", "admin"})
    OPERATE = frozenset[Role]({"operator", "admin"})
    ADMINISTER = frozenset[Role]({"admin"})
    ASK = frozenset[Role](
        {"inference", "viewer", "operator", "admin"}
    )  # any key: the handler limits it to the rows of its owner
    INFER = frozenset[Role]({"inference", "operator", "admin"})


@dataclass(frozen=True, slots=True)
class Query:
    """A query parameter. `many`: it may be given several times."""

    name: str
    description: str
    kind: Literal["string", "integer", "boolean"] = "string"
    many: bool = False


PAGING: Final = (
    Query("limit", "objects per page, 1 to 1000 (default 100)", "integer"),
    Query("cursor", "`next` of the previous page"),
)


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path.

    Attributes:
        path: the path in aiohttp's form, `{name}` for variables.
        canonical: the path without the patterns of its variables: `/ui/{path}` for `/ui/{path:.*}`.
        summary: one line for /openapi.json.
        tag: the resource, for /openapi.json.
        answer: model of a successful response; None: `media` names its content type.
        query: query parameters.
        status: the status of a successful response.
        media: the content type of a successful response.
        stream: without a deadline. It ends within seconds after its key is revoked.
        from_memory: answered without the database too.
        momentary: the answer contains the time at which it was made. No two answers are equal, so it gets no ETag.
        expects: the precondition that a write may state: the object's `generation` (If-Match), or its `state`, which
            includes that there is no object (If-None-Match: *). Empty: the object has no generation, and a
            precondition is refused.
    """

    method: str
    path: str
    handler: Handler
    access: Access
    summary: str
    tag: str
    answer: type[View] | None = None
    body: Any = None
    query: tuple[Query, ...] = ()
    status: int = 200
    media: str = "application/json"
    stream: bool = False
    from_memory: bool = False
    momentary: bool = False
    expects: Literal["", "generation", "state"] = ""
    canonical: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "canonical", _PATTERN.sub(r"{\1}", self.path))
