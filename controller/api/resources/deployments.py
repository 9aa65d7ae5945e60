"""Deployments: list, read, apply, delete, start, stop, scale, wake."""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from typing import Final

import msgspec
from aiohttp import web

from controller.api.body import json_response, read_model
from controller.api.context import CONTEXT
from controller.api.manifest_routes import ManifestResource, etag
from controller.api.parameters import expected_generation
from controller.api.route import Access, Handler, Route
from controller.api.spec_checks import (
    coverage_warnings,
    grant_warnings,
    granted_to,
    named_secret_warnings,
    placement_warnings,
    secret_warnings,
)
from controller.domain.access.grants import Grant
from controller.domain.access.redaction import Redaction
from controller.engines.arguments.privileges import ungranted
from controller.engines.registry import engine_for, validate
from controller.scheduling.estimate import input_hash
from controller.store.access.secret_keys import SecretKeys
from controller.store.core.database import Database
from controller.store.deployments import verbs
from controller.store.deployments.apply import Applied
from controller.store.deployments.creations import Creations
from controller.store.views.deployments import deployment_by_name, list_deployments
from controller.store.views.load import load_of
from schemas.api.deployments import DeploymentLoad, DeploymentView
from schemas.api.envelopes import Page
from schemas.api.requests import RestartBody, ScaleBody, WakeBody
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.parse import parse_spec

CREATIONS: Final = web.AppKey("CREATIONS", Creations)


def _parse(body: object, name: str) -> DeploymentSpec:
    spec = parse_spec(body, name=name)
    validate(spec)
    return spec


async def _apply(
    database: Database,
    name: str,
    spec: DeploymentSpec,
    *,
    if_match: int | None,
    longest_window_s: float,
    granted: Collection[Grant],
    creations: Creations,
    redaction: Redaction,
    secret_keys: SecretKeys,
) -> Applied:
    async with database.snapshot() as connection:
        warnings = [
            *await placement_warnings(connection, spec),
            *await named_secret_warnings(connection, {name: spec}, secret_keys, named=False),
            *secret_warnings(redaction, spec),
        ]
    warnings += [*coverage_warnings(spec), *grant_warnings(granted, spec)]
    applied = await creations.apply(
        name,
        spec,
        input_hash=input_hash(spec, engine_for(spec)),
        if_match=if_match,
        longest_window_s=longest_window_s,
        lacks=ungranted(granted, spec),
    )
    return replace(applied, view=msgspec.structs.replace(applied.view, warnings=warnings)) if warnings else applied


async def scale(request: web.Request) -> web.Response:
    """`POST /deployments/{name}/scale`."""
    body = await read_model(request, ScaleBody)
    database = request.app[CONTEXT].database
    name, (low, high) = request.match_info["name"], body.bounds
    view = await verbs.scale(database, name, low, high, if_match=expected_generation(request))
    return json_response(view, headers=etag(view))


async def wake(request: web.Request) -> web.Response:
    """`POST /deployments/{name}/wake`."""
    body = await read_model(request, WakeBody)
    view = await verbs.wake(
        request.app[CONTEXT].database, request.match_info["name"], body.for_s, if_match=expected_generation(request)
    )
    return json_response(view, headers=etag(view))


async def restart(request: web.Request) -> web.Response:
    """`POST /deployments/{name}/restart`."""
    body = await read_model(request, RestartBody, optional=True)
    database, name = request.app[CONTEXT].database, request.match_info["name"]
    if_match = expected_generation(request)
    if body.pull:
        view = await verbs.pull(database, name, if_match=if_match)
    else:
        view = await verbs.restart(database, name, body.instance, if_match=if_match)
    return json_response(view, headers=etag(view))


async def load(request: web.Request) -> web.Response:
    """`GET /deployments/{name}/load`."""
    async with request.app[CONTEXT].database.snapshot() as connection:
        return json_response(await load_of(connection, request.match_info["name"]))


def _verb(act: Callable[..., Awaitable[DeploymentView]]) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        database, name = request.app[CONTEXT].database, request.match_info["name"]
        view = await act(database, name, if_match=expected_generation(request))
        return json_response(view, headers=etag(view))

    return handler


_PATH: Final = "/api/v1/deployments"
_TAG: Final = "deployments"
_MANIFEST_ROUTES: Final = ManifestResource(
    path=_PATH,
    noun="deployment",
    plural="deployments",
    page=Page[DeploymentView],
    view=DeploymentView,
    spec=DeploymentSpec,
    parse=_parse,
    read_page=list_deployments,
    read=deployment_by_name,
    apply=_apply,
    of_caller=lambda request: {
        "granted": granted_to(request),
        "creations": request.app[CREATIONS],
        "redaction": request.app[CONTEXT].known_secrets.redaction(),
        "secret_keys": request.app[CONTEXT].secret_keys,
    },
    delete=verbs.delete,
    delete_status=202,  # removed once its instances have ended
).routes()
ROUTES: Final = (
    *_MANIFEST_ROUTES,
    Route("GET", _PATH + "/{name}/load", load, Access.READ, "Requests at gateways now", _TAG, DeploymentLoad),
    Route(
        "POST", _PATH + "/{name}/start", _verb(verbs.start), Access.OPERATE,
        "Undo stops, and run ended tasks again (If-Match: generation)", _TAG, DeploymentView, expects="generation",
    ),
    Route(
        "POST", _PATH + "/{name}/restart", restart, Access.OPERATE,
        "Restart instances, as many at a time as `update` allows (If-Match: generation)", _TAG, DeploymentView,
        RestartBody, expects="generation",
    ),
    Route(
        "POST", _PATH + "/{name}/stop", _verb(verbs.stop), Access.OPERATE, "Stop replicas (If-Match: generation)",
        _TAG, DeploymentView, expects="generation",
    ),
    Route(
        "POST", _PATH + "/{name}/scale", scale, Access.OPERATE, "Change the number of replicas (If-Match: generation)",
        _TAG, DeploymentView, ScaleBody, expects="generation",
    ),
    Route(
        "POST", _PATH + "/{name}/wake", wake, Access.OPERATE,
        "Keep a deployment with min 0 awake (If-Match: generation)", _TAG, DeploymentView, WakeBody,
        expects="generation",
    ),
)  # fmt: skip
