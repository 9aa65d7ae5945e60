"""Deployments with their rollouts, models and instances: list, read, apply, delete, and their verbs."""

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec
from aiohttp import web

from controller.api.apply import (
    coverage_warnings,
    grant_warnings,
    granted_to,
    named_secret_warnings,
    placement_warnings,
    secret_warnings,
)
from controller.api.body import json_response, read_model
from controller.api.context import CONTEXT
from controller.api.dry_run.allowances import ANALYSES_AT_ONCE
from controller.api.errors import invalid
from controller.api.manifest_routes import ManifestResource, etag
from controller.api.parameters import expected_generation, integer, parameters_of
from controller.api.read_routes import list_route, read_route
from controller.api.route import Access, Handler, Query, Route
from controller.domain.access.grants import Grant
from controller.domain.access.redaction import Redaction
from controller.domain.spec_changes import field_changes
from controller.engines.arguments.privileges import ungranted
from controller.engines.registry import engine_for, validate
from controller.runtime.child import ChildError, ChildFailure, run_child
from controller.scheduling.estimate import input_hash
from controller.store.access.secret_keys import SecretKeys
from controller.store.core.database import Database
from controller.store.deployments import verbs
from controller.store.deployments.apply import Applied
from controller.store.deployments.creations import Creations
from controller.store.deployments.rollouts import pause, resume
from controller.store.views.deployments import (
    deployment_by_name,
    list_deployments,
    load_of,
    revision_specs,
    revisions_of,
)
from controller.store.views.instances import instance_by_id, list_instances
from schemas.api.deployments import DeploymentLoad, DeploymentView, ModelHead, ModelHeads, RevisionDiff, RevisionList
from schemas.api.envelopes import Page
from schemas.api.instances import InstanceView
from schemas.api.requests import RestartBody, ScaleBody, UndoBody, WakeBody
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.parse import parse_spec
from schemas.manifest.problems import FieldProblem

CREATIONS: Final = web.AppKey("CREATIONS", Creations)
_HUB_TARGET: Final = "controller.model_files.analysis:hub_heads"
_HUB_DEADLINE_S: Final = 25.0
_HUB_MEMORY_BYTES: Final = 2**30
_KEPT_S: Final = 60.0
_MOST_KEPT: Final = 1000
_Heads = list[dict[str, Any]]
HEADS: Final = web.AppKey("HEADS", dict[tuple[str, ...], tuple[float, _Heads]])
_INSTANCES: Final = "/api/v1/instances"
_INSTANCE_FILTERS: Final = (
    Query("deployment", "only of this deployment"),
    Query("worker", "only those with claims on this worker"),
)


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
    body = await read_model(request, ScaleBody)
    database = request.app[CONTEXT].database
    name, (low, high) = request.match_info["name"], body.bounds
    view = await verbs.scale(database, name, low, high, if_match=expected_generation(request))
    return json_response(view, headers=etag(view))


async def wake(request: web.Request) -> web.Response:
    body = await read_model(request, WakeBody)
    view = await verbs.wake(
        request.app[CONTEXT].database, request.match_info["name"], body.for_s, if_match=expected_generation(request)
    )
    return json_response(view, headers=etag(view))


async def restart(request: web.Request) -> web.Response:
    body = await read_model(request, RestartBody, optional=True)
    database, name = request.app[CONTEXT].database, request.match_info["name"]
    if_match = expected_generation(request)
    if body.pull:
        view = await verbs.pull(database, name, if_match=if_match)
    else:
        view = await verbs.restart(database, name, body.instance, if_match=if_match)
    return json_response(view, headers=etag(view))


async def load(request: web.Request) -> web.Response:
    async with request.app[CONTEXT].database.snapshot() as connection:
        return json_response(await load_of(connection, request.match_info["name"]))


def _verb(act: Callable[..., Awaitable[DeploymentView]]) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        database, name = request.app[CONTEXT].database, request.match_info["name"]
        view = await act(database, name, if_match=expected_generation(request))
        return json_response(view, headers=etag(view))

    return handler


_PATH: Final = "/api/v1/deployments"
_ONE: Final = _PATH + "/{name}"
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


async def _revisions(request: web.Request) -> web.Response:
    async with request.app[CONTEXT].database.snapshot() as connection:
        return json_response(await revisions_of(connection, request.match_info["name"]))


async def _diff(request: web.Request) -> web.Response:
    given = parameters_of(request)
    missing = [FieldProblem(end, "is required: the number of a revision") for end in ("from", "to") if end not in given]
    if missing:
        raise invalid(missing)
    old, new = (integer(given, end, low=1, high=_MOST) or 0 for end in ("from", "to"))
    async with request.app[CONTEXT].database.snapshot() as connection:
        before, after = await revision_specs(connection, request.match_info["name"], (old, new))
    return json_response(RevisionDiff(old=old, new=new, fields=field_changes(before, after)))


async def _undo(request: web.Request) -> web.Response:
    body = await read_model(request, UndoBody)
    database, name = request.app[CONTEXT].database, request.match_info["name"]
    lacking = partial(ungranted, granted_to(request))
    view = await verbs.undo(database, name, body.revision, lacking=lacking, if_match=expected_generation(request))
    return json_response(view, headers=etag(view))


def _rollout_verb(act: Callable[..., Awaitable[None]]) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        database, name = request.app[CONTEXT].database, request.match_info["name"]
        await act(database, name, if_match=expected_generation(request))
        async with database.snapshot() as connection:
            view = await deployment_by_name(connection, name)
        return json_response(view, headers=etag(view))

    return handler


_MOST: Final = 2**31 - 1  # of a number in the database
_TAG: Final = "deployments"


async def get_models(request: web.Request) -> web.Response:
    async with request.app[CONTEXT].database.snapshot() as connection:
        view = await deployment_by_name(connection, request.match_info["name"])
    commits = view.status.model_commits
    heads: Sequence[Mapping[str, Any]] = [{"problem": "the deployment names a hub of its own"}] * len(commits)
    if commits and "HF_ENDPOINT" not in view.spec.env:
        heads = await _heads(request.app, tuple(commits))
    items = [_head(*commit, head) for commit, head in zip(commits.items(), heads, strict=True)]
    return json_response(ModelHeads(items=items))


async def _heads(app: web.Application, models: tuple[str, ...]) -> _Heads:
    """The heads of these models' branches, kept for a minute. A child that can be killed queries the hub."""
    kept = app[HEADS]
    known = kept.get(models)
    if known is not None and time.monotonic() - known[0] < _KEPT_S:
        return known[1]
    sources = [{"repo": repo, "revision": revision} for repo, _, revision in (name.partition("@") for name in models)]
    async with app[ANALYSES_AT_ONCE]:
        try:
            heads: _Heads = await run_child(
                _HUB_TARGET, {"models": sources}, deadline_s=_HUB_DEADLINE_S, memory_bytes=_HUB_MEMORY_BYTES
            )
        except ChildFailure as error:
            text = error.message if isinstance(error, ChildError) else str(error)
            return [{"problem": f"the hub was not asked: {text}"}] * len(models)
    heads += [{"problem": "too many models"}] * (len(models) - len(heads))
    kept.pop(models, None)
    kept[models] = (time.monotonic(), heads)
    if len(kept) > _MOST_KEPT:
        del kept[next(iter(kept))]
    return heads


def _head(model: str, commit: str, head: Mapping[str, Any]) -> ModelHead:
    now = head.get("head")
    moved = None if now is None else now != commit
    return ModelHead(model=model, commit=commit, head=now, moved=moved, problem=head.get("problem", ""))


ROUTES: Final = (
    *_MANIFEST_ROUTES,
    Route("GET", _ONE + "/load", load, Access.READ, "Requests at gateways now", _TAG, DeploymentLoad),
    Route(
        "POST", _ONE + "/start", _verb(verbs.start), Access.OPERATE,
        "Undo stops, and run ended tasks again (If-Match: generation)", _TAG, DeploymentView, expects="generation",
    ),
    Route(
        "POST", _ONE + "/restart", restart, Access.OPERATE,
        "Restart instances, as many at a time as `update` allows (If-Match: generation)", _TAG, DeploymentView,
        RestartBody, expects="generation",
    ),
    Route(
        "POST", _ONE + "/stop", _verb(verbs.stop), Access.OPERATE, "Stop replicas (If-Match: generation)",
        _TAG, DeploymentView, expects="generation",
    ),
    Route(
        "POST", _ONE + "/scale", scale, Access.OPERATE, "Change the number of replicas (If-Match: generation)",
        _TAG, DeploymentView, ScaleBody, expects="generation",
    ),
    Route(
        "POST", _ONE + "/wake", wake, Access.OPERATE,
        "Keep a deployment with min 0 awake (If-Match: generation)", _TAG, DeploymentView, WakeBody,
        expects="generation",
    ),
    Route("GET", _ONE + "/revisions", _revisions, Access.READ, "List revisions", _TAG, RevisionList),
    Route(
        "GET", _ONE + "/revisions/diff", _diff, Access.READ, "Compare two revisions by field", _TAG, RevisionDiff,
        query=(
            Query("from", "number of the revision whose values are `old`", "integer"),
            Query("to", "number of the revision whose values are `new`", "integer"),
        ),
    ),
    Route(
        "POST", _ONE + "/rollout/pause", _rollout_verb(pause), Access.OPERATE,
        "Pause the rollout (If-Match: generation)", _TAG, DeploymentView, expects="generation",
    ),
    Route(
        "POST", _ONE + "/rollout/resume", _rollout_verb(resume), Access.OPERATE,
        "Resume the rollout, or try a failed one again (If-Match: generation)", _TAG, DeploymentView,
        expects="generation",
    ),
    Route(
        "POST", _ONE + "/rollout/undo", _undo, Access.OPERATE, "Go back to an older revision (If-Match: generation)",
        _TAG, DeploymentView, UndoBody, expects="generation",
    ),
    Route(
        "GET", _ONE + "/models", get_models, Access.READ,
        "Show the commits of a deployment's models on the hub, and whether their branches have moved", _TAG,
        ModelHeads,
    ),
    list_route(_INSTANCES, list_instances, "List instances", Page[InstanceView], _INSTANCE_FILTERS),
    read_route(_INSTANCES, "id", instance_by_id, "Read an instance", InstanceView),
)  # fmt: skip
