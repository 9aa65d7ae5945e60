"""Events: list, newest first."""

from typing import Final

from aiohttp import web

from controller.api.context import CONTEXT
from controller.api.errors import invalid
from controller.api.parameters import known_parameters, page_limit, whole_number
from controller.api.responses import json_response
from controller.api.route import PAGING, Access, Query, Route
from controller.store.views.events import list_events, objects_named
from schemas.api.envelopes import Page
from schemas.api.events import EventView
from schemas.manifest.problems import FieldProblem

_KINDS: Final = ("deployment", "instance", "worker", "gpu", "policy", "key", "token", "secret")


async def get_all(request: web.Request) -> web.Response:
    """`GET /events`."""
    parameters = known_parameters(request, "limit", "cursor", "object", "reason", "since")
    async with request.app[CONTEXT].database.snapshot() as connection:
        objects = None
        if about := parameters.get("object"):
            kind, mark, name = about.replace("/", ":", 1).partition(":")
            if not mark or not name or kind not in _KINDS:
                forms = ", ".join(f"{known}:ID" for known in _KINDS)
                raise invalid([FieldProblem("object", f"must be one of {forms}, or KIND/NAME, got {about[:80]!r}")])
            objects = await objects_named(connection, kind, name) if "/" in about else [about]
        page = await list_events(
            connection,
            limit=page_limit(parameters),
            cursor=parameters.get("cursor"),
            objects=objects,
            reason=parameters.get("reason"),
            since_id=whole_number(parameters, "since", low=0, high=2**63 - 1),
        )
    return json_response(page)


_FILTERS: Final = (
    Query("object", f"only of this object: KIND:UID or KIND/NAME, the kind one of {', '.join(_KINDS)}"),
    Query("reason", "only these reason codes, comma-separated"),
    Query("since", "only events after the one with this id", "integer"),
)
ROUTES: Final = (
    Route(
        "GET", "/api/v1/events", get_all, Access.READ, "List events, newest first", "events", Page[EventView],
        query=(*PAGING, *_FILTERS),
    ),
)  # fmt: skip
