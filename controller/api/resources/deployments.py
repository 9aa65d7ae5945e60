"""Deployments: read, apply, delete, start, stop, scale."""

from collections.abc import Awaitable, Callable
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
    read_model,
    tagged,
)
from controller.api.route import PAGING, Access, Route
from controller.engines.registry import validate
from controller.store.core.database import Database
from controller.store.deployments import writes as store
from controller.store.views.deployments import deployment_by_name, list_deployments
from schemas.api.deployments import DeploymentView
from schemas.api.envelopes import Page
from schemas.api.requests import ScaleBody
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.parse import parse_spec


async def get_all(request: web.Request) -> web.Response:
    """`GET /deployments`."""
    parameters = known_parameters(request, "limit", "cursor")
    async with request.app[CONTEXT].database.snapshot() as connection:
        page = await list_deployments(connection, limit=page_limit(parameters), cursor=parameters.get("cursor"))
    return answer(page)


async def get_one(request: web.Request) -> web.Response:
    """`GET /deployments/{name}`."""
    async with request.app[CONTEXT].database.snapshot() as connection:
        view = await deployment_by_name(connection, request.match_info["name"])
    return answer(view, headers=tagged(view))


async def put(request: web.Request) -> web.Response:
    """`PUT /deployments/{name}`."""
    name = name_to_apply(request)
    spec = parse_spec(await read_json_body(request), name=name)
    validate(spec)
    context = request.app[CONTEXT]
    applied = await store.apply(
        context.database,
        name,
        spec,
        if_match=expected_generation(request),
        longest_window_s=context.longest_window_s,
    )
    status = 201 if applied.outcome == "created" else 200
    headers = {**tagged(applied.view), OUTCOME_HEADER: applied.outcome}
    return answer(applied.view, status=status, headers=headers)


async def delete(request: web.Request) -> web.Response:
    """`DELETE /deployments/{name}`."""
    database = request.app[CONTEXT].database
    view = await store.delete(database, request.match_info["name"], if_match=expected_generation(request))
    return answer(view, status=202)


async def scale(request: web.Request) -> web.Response:
    """`POST /deployments/{name}/scale`."""
    body = await read_model(request, ScaleBody)
    database = request.app[CONTEXT].database
    view = await store.scale(database, request.match_info["name"], body.replicas, if_match=expected_generation(request))
    return answer(view, headers=tagged(view))


def _verb(
    act: Callable[[Database, str], Awaitable[DeploymentView]],
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handler(request: web.Request) -> web.Response:
        view = await act(request.app[CONTEXT].database, request.match_info["name"])
        return answer(view, headers=tagged(view))

    return handler


_PATH: Final = "/api/v1/deployments"
ROUTES: Final = (
    Route("GET", _PATH, get_all, Access.READ, "List deployments", "deployments", Page[DeploymentView], query=PAGING),
    Route("GET", _PATH + "/{name}", get_one, Access.READ, "Read a deployment", "deployments", DeploymentView),
    Route(
        "PUT", _PATH + "/{name}", put, Access.OPERATE, "Apply a deployment (If-Match: generation)", "deployments",
        DeploymentView, DeploymentSpec,
    ),
    Route(
        "DELETE", _PATH + "/{name}", delete, Access.OPERATE, "Delete a deployment (If-Match: generation)",
        "deployments", DeploymentView, status=202,
    ),
    Route(
        "POST", _PATH + "/{name}/start", _verb(store.start), Access.OPERATE, "Take back stops", "deployments",
        DeploymentView,
    ),
    Route(
        "POST", _PATH + "/{name}/stop", _verb(store.stop), Access.OPERATE, "Stop all replicas", "deployments",
        DeploymentView,
    ),
    Route(
        "POST", _PATH + "/{name}/scale", scale, Access.OPERATE, "Change the number of replicas", "deployments",
        DeploymentView, ScaleBody,
    ),
)  # fmt: skip
