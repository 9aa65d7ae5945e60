"""Rollouts of deployments: their revisions, pause, resume, undo."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from aiohttp import web

from controller.api.body import json_response, read_model
from controller.api.context import CONTEXT
from controller.api.errors import invalid
from controller.api.manifest_routes import etag
from controller.api.parameters import expected_generation, parameters_of, whole_number
from controller.api.route import Access, Handler, Query, Route
from controller.api.spec_checks import granted_to
from controller.domain.spec_changes import field_changes
from controller.engines.arguments.privileges import ungranted
from controller.store.deployments.rollouts import pause, resume
from controller.store.deployments.verbs import undo
from controller.store.views.deployments import deployment_by_name
from controller.store.views.rollouts import revision_specs, revisions_of
from schemas.api.deployments import DeploymentView
from schemas.api.requests import UndoBody
from schemas.api.rollouts import RevisionDiff, RevisionList
from schemas.manifest.problems import FieldProblem


async def _revisions(request: web.Request) -> web.Response:
    async with request.app[CONTEXT].database.snapshot() as connection:
        return json_response(await revisions_of(connection, request.match_info["name"]))


async def _diff(request: web.Request) -> web.Response:
    given = parameters_of(request)
    missing = [FieldProblem(one, "is required: the number of a revision") for one in ("from", "to") if one not in given]
    if missing:
        raise invalid(missing)
    old, new = (whole_number(given, one, low=1, high=_MOST) or 0 for one in ("from", "to"))
    async with request.app[CONTEXT].database.snapshot() as connection:
        before, after = await revision_specs(connection, request.match_info["name"], (old, new))
    return json_response(RevisionDiff(old=old, new=new, fields=field_changes(before, after)))


async def _undo(request: web.Request) -> web.Response:
    body = await read_model(request, UndoBody)
    database, name = request.app[CONTEXT].database, request.match_info["name"]
    lacking = partial(ungranted, granted_to(request))
    view = await undo(database, name, body.revision, lacking=lacking, if_match=expected_generation(request))
    return json_response(view, headers=etag(view))


def _verb(act: Callable[..., Awaitable[None]]) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        database, name = request.app[CONTEXT].database, request.match_info["name"]
        await act(database, name, if_match=expected_generation(request))
        async with database.snapshot() as connection:
            view = await deployment_by_name(connection, name)
        return json_response(view, headers=etag(view))

    return handler


_MOST: Final = 2**31 - 1  # of a number in the database
_PATH: Final = "/api/v1/deployments/{name}"
_TAG: Final = "deployments"
ROUTES: Final = (
    Route("GET", _PATH + "/revisions", _revisions, Access.READ, "List revisions", _TAG, RevisionList),
    Route(
        "GET", _PATH + "/revisions/diff", _diff, Access.READ, "Compare two revisions by field", _TAG, RevisionDiff,
        query=(
            Query("from", "number of the revision whose values are `old`", "integer"),
            Query("to", "number of the revision whose values are `new`", "integer"),
        ),
    ),
    Route(
        "POST", _PATH + "/rollout/pause", _verb(pause), Access.OPERATE, "Pause the rollout (If-Match: generation)",
        _TAG, DeploymentView, expects="generation",
    ),
    Route(
        "POST", _PATH + "/rollout/resume", _verb(resume), Access.OPERATE,
        "Resume the rollout, or try a failed one again (If-Match: generation)", _TAG, DeploymentView,
        expects="generation",
    ),
    Route(
        "POST", _PATH + "/rollout/undo", _undo, Access.OPERATE, "Go back to an older revision (If-Match: generation)",
        _TAG, DeploymentView, UndoBody, expects="generation",
    ),
)  # fmt: skip
