"""What a route is: path, handler, who may call it, and what goes in and out. The table behind app and /openapi.json."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal

from aiohttp import web
from pydantic import BaseModel

from schemas.api.access import Role

MAX_BODY_BYTES: Final = 2**20
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Access(Enum):
    """Who may call a route. Every route says so; there is no default but refusal."""

    OPEN = frozenset[Role]()  # anybody; the handler authenticates by itself or tells nothing of value
    READ = frozenset[Role]({"viewer", "operator", "admin"})
    OPERATE = frozenset[Role]({"operator", "admin"})
    ADMINISTER = frozenset[Role]({"admin"})
    INFER = frozenset[Role]({"inference", "operator", "admin"})

    def allows(self, role: Role) -> bool:
        """Whether a key of this role may call it."""
        return self is Access.OPEN or role in self.value


@dataclass(frozen=True, slots=True)
class Query:
    """A query parameter."""

    name: str
    description: str
    kind: Literal["string", "integer", "boolean"] = "string"


PAGING: Final = (
    Query("limit", "objects on a page, 1 to 1000; 100 where it is left out", "integer"),
    Query("cursor", "`next` of the page before"),
)


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path.

    Attributes:
        method: HTTP method.
        path: as aiohttp writes it, `{name}` for variables.
        handler: what answers.
        access: who may call it.
        summary: one line for /openapi.json.
        tag: the resource, for /openapi.json.
        answer: model of a good answer; None: no JSON of a model (`media` says what then).
        body: model of the body; None: it takes none.
        query: query parameters.
        status: of a good answer.
        media: content type of a good answer.
        stream: the answer may take as long as it likes; no deadline.
        max_body_bytes: beyond it 413.
    """

    method: str
    path: str
    handler: Handler
    access: Access
    summary: str
    tag: str
    answer: type[BaseModel] | None = None
    body: Any = None
    query: tuple[Query, ...] = ()
    status: int = 200
    media: str = "application/json"
    stream: bool = False
    max_body_bytes: int = MAX_BODY_BYTES
