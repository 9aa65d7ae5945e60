"""A route: path, handler, access and models. The route table builds the application and /openapi.json."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal

from aiohttp import web

from schemas.api.access import Role
from schemas.api.view import View

_PATTERN: Final = re.compile(r"\{(\w+):[^}]*\}")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Access(Enum):
    """The roles that may call a route. Every route states it; there is no default."""

    OPEN = frozenset[Role]()  # without a key: the handler authenticates, or returns nothing confidential
    READ = frozenset[Role]({"viewer", "operator", "admin"})
    OPERATE = frozenset[Role]({"operator", "admin"})
    ADMINISTER = frozenset[Role]({"admin"})
    ASK = frozenset[Role]({"inference", "viewer", "operator", "admin"})  # any key: the handler says whose rows it reads
    INFER = frozenset[Role]({"inference", "operator", "admin"})

    def allows(self, role: Role) -> bool:
        """Whether a key of this role may call it."""
        return self is Access.OPEN or role in self.value


def may_read_logs(role: Role, *, viewers: bool) -> bool:
    """Whether a role may read logs, and the lines that messages quote of them, where viewers may or may not.

    Engines print requests, paths and what they like.
    """
    return Access.OPERATE.allows(role) or (viewers and Access.READ.allows(role))


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
        method: HTTP method.
        path: in aiohttp's form, `{name}` for variables.
        handler: of the request.
        access: the roles that may call it.
        summary: one line for /openapi.json.
        tag: the resource, for /openapi.json.
        answer: model of a successful response; None: `media` says what it is.
        body: model of the request body; None: no body.
        query: query parameters.
        status: of a successful response.
        media: content type of a successful response.
        stream: without a deadline. It ends within seconds when its key is revoked.
        from_memory: answered without the database too.
        momentary: the answer tells the moment at which it was made, so that no two are equal: it gets no ETag.
        expects: what a write may require of the object: its `generation` (If-Match), or its `state`, which also is
            that there is none (If-None-Match: *). Empty: it has no generation, and a requirement is refused.
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

    @property
    def canonical(self) -> str:
        """The path without the patterns of its variables: `/ui/{path}` for `/ui/{path:.*}`."""
        return _PATTERN.sub(r"{\1}", self.path)
