"""Utilization policies: read, apply, delete."""

from typing import Final

from aiohttp import web

from controller.api.context import CONTEXT
from controller.api.exchange import (
    OUTCOME_HEADER,
    answer,
    expected_generation,
    known_parameters,
    name_to_apply,
    page_limit,
    read_json_body,
    tagged,
)
from controller.api.route import PAGING, Access, Route
from controller.store.policies.writes import apply_policy, delete_policy
from controller.store.views.policies import list_policies, policy_by_name
from schemas.api.envelopes import Page
from schemas.api.policies import PolicyView
from schemas.manifest.parse import parse_policy_spec
from schemas.manifest.policy import PolicySpec


async def get_all(request: web.Request) -> web.Response:
    """`GET /policies`."""
    parameters = known_parameters(request, "limit", "cursor")
    async with request.app[CONTEXT].database.snapshot() as connection:
        page = await list_policies(connection, limit=page_limit(parameters), cursor=parameters.get("cursor"))
    return answer(page)


async def get_one(request: web.Request) -> web.Response:
    """`GET /policies/{name}`."""
    async with request.app[CONTEXT].database.snapshot() as connection:
        view = await policy_by_name(connection, request.match_info["name"])
    return answer(view, headers=tagged(view))


async def put(request: web.Request) -> web.Response:
    """`PUT /policies/{name}`."""
    name = name_to_apply(request)
    spec = parse_policy_spec(await read_json_body(request), name=name)
    context = request.app[CONTEXT]
    applied = await apply_policy(
        context.database,
        name,
        spec,
        if_match=expected_generation(request),
        longest_window_s=context.longest_window_s,
    )
    status = 201 if applied.outcome == "created" else 200
    return answer(applied.view, status=status, headers={**tagged(applied.view), OUTCOME_HEADER: applied.outcome})


async def delete(request: web.Request) -> web.Response:
    """`DELETE /policies/{name}`."""
    database = request.app[CONTEXT].database
    view = await delete_policy(database, request.match_info["name"], if_match=expected_generation(request))
    return answer(view)


_PATH: Final = "/api/v1/policies"
ROUTES: Final = (
    Route("GET", _PATH, get_all, Access.READ, "List utilization policies", "policies", Page[PolicyView], query=PAGING),
    Route("GET", _PATH + "/{name}", get_one, Access.READ, "Read a utilization policy", "policies", PolicyView),
    Route(
        "PUT", _PATH + "/{name}", put, Access.OPERATE, "Apply a utilization policy (If-Match: generation)", "policies",
        PolicyView, PolicySpec,
    ),
    Route(
        "DELETE", _PATH + "/{name}", delete, Access.OPERATE, "Delete a utilization policy (If-Match: generation)",
        "policies", PolicyView,
    ),
)  # fmt: skip
