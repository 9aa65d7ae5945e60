"""`POST /apply`: several manifests in one transaction, all of them or none."""

from typing import Final

from aiohttp import web

from controller.api.body import read_model
from controller.api.context import CONTEXT
from controller.api.dry_run.documents import check_documents, read_documents
from controller.api.responses import json_response
from controller.api.route import Access, Route
from controller.api.spec_privileges import granted_to, judge_for
from controller.engines.registry import engine_for
from controller.scheduling.estimate import input_hash
from controller.store.deployments.apply_all import AppliedDocument, Document, apply_all
from schemas.api.apply import AppliedObject, ApplyView
from schemas.api.requests import ApplyBody
from schemas.manifest.deployment import DeploymentManifest
from schemas.manifest.parse import Manifest


async def post(request: web.Request) -> web.Response:
    """`POST /apply`."""
    context = request.app[CONTEXT]
    body = await read_model(request, ApplyBody)
    documents = read_documents(body.manifests)
    checked = await check_documents(
        context.database,
        documents,
        longest_window_s=context.longest_window_s,
        known=context.known_secrets.redaction(),
        keys=context.secret_keys,
        granted=granted_to(request),
    )
    applied = await apply_all(
        context.database,
        [_document(path, one) for path, one in documents.written.items()],
        {"policy": body.expected.policies, "deployment": body.expected.deployments},
        longest_window_s=context.longest_window_s,
        judge=judge_for(request),
    )
    return json_response(ApplyView(items=[_view(one) for one in applied], warnings=checked.warnings))


def _document(path: str, manifest: Manifest) -> Document:
    if not isinstance(manifest, DeploymentManifest):
        return Document(path, manifest.name, manifest.spec())
    spec = manifest.spec()
    return Document(path, manifest.name, spec, input_hash(spec, engine_for(spec)))


def _view(one: AppliedDocument) -> AppliedObject:
    return AppliedObject(
        kind="Deployment" if one.kind == "deployment" else "UtilizationPolicy",
        name=one.name,
        uid=one.uid,
        generation=one.generation,
        outcome=one.outcome,
    )


ROUTES: Final = (
    Route(
        "POST", "/api/v1/apply", post, Access.OPERATE, "Apply manifests together: all of them, or none", "apply",
        ApplyView, ApplyBody,
    ),
)  # fmt: skip
