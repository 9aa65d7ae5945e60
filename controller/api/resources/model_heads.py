"""`GET /deployments/{name}/models`: the commits that a deployment runs, and whether the hub's branches have moved.

The hub is asked in a killable child, as for an analysis, and its answer is kept for a minute.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiohttp import web

from controller.api.body import json_response
from controller.api.context import CONTEXT
from controller.api.dry_run.allowances import ANALYSES_AT_ONCE
from controller.api.route import Access, Route
from controller.runtime.child import ChildError, ChildFailure, run_child
from controller.store.views.deployments import deployment_by_name
from schemas.api.deployments import ModelHead, ModelHeads

_TARGET: Final = "controller.model_files.analysis:hub_heads"
_DEADLINE_S: Final = 25.0
_MEMORY_BYTES: Final = 2**30
_KEPT_S: Final = 60.0
_MOST_KEPT: Final = 1000
_Heads = list[dict[str, Any]]
HEADS: Final = web.AppKey("HEADS", dict[tuple[str, ...], tuple[float, _Heads]])


async def get(request: web.Request) -> web.Response:
    """`GET /deployments/{name}/models`."""
    async with request.app[CONTEXT].database.snapshot() as connection:
        view = await deployment_by_name(connection, request.match_info["name"])
    commits = view.status.model_commits
    heads: Sequence[Mapping[str, Any]] = [{"problem": "the deployment names a hub of its own"}] * len(commits)
    if commits and "HF_ENDPOINT" not in view.spec.env:
        heads = await _heads(request.app, tuple(commits))
    items = [_item(*one, head) for one, head in zip(commits.items(), heads, strict=True)]
    return json_response(ModelHeads(items=items))


async def _heads(app: web.Application, models: tuple[str, ...]) -> _Heads:
    kept = app[HEADS]
    known = kept.get(models)
    if known is not None and time.monotonic() - known[0] < _KEPT_S:
        return known[1]
    asked = [{"repo": repo, "revision": revision} for repo, _, revision in (one.partition("@") for one in models)]
    async with app[ANALYSES_AT_ONCE]:
        try:
            found: _Heads = await run_child(
                _TARGET, {"models": asked}, deadline_s=_DEADLINE_S, memory_bytes=_MEMORY_BYTES
            )
        except ChildFailure as error:
            text = error.message if isinstance(error, ChildError) else str(error)
            return [{"problem": f"the hub was not asked: {text}"}] * len(models)
    found += [{"problem": "too many models"}] * (len(models) - len(found))
    kept.pop(models, None)
    kept[models] = (time.monotonic(), found)
    if len(kept) > _MOST_KEPT:
        del kept[next(iter(kept))]
    return found


def _item(model: str, commit: str, head: Mapping[str, Any]) -> ModelHead:
    now = head.get("head")
    moved = None if now is None else now != commit
    return ModelHead(model=model, commit=commit, head=now, moved=moved, problem=head.get("problem", ""))


ROUTES: Final = (
    Route(
        "GET", "/api/v1/deployments/{name}/models", get, Access.READ,
        "Show the commits of a deployment's models on the hub, and whether their branches have moved", "deployments",
        ModelHeads,
    ),
)  # fmt: skip
