"""Deployments as the API shows them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from controller.domain.wanted import wanted_replicas
from controller.store.core.database import Reader, view_of
from controller.store.core.refusals import NotFoundError
from controller.store.deployments.specs import keep_specs_of, spec_from_json
from controller.store.views.paging import open_cursor, page_of
from controller.store.views.pieces import in_pieces
from controller.store.views.rollouts import rollouts_of
from controller.store.views.scaling import Scaled, scaled_of
from controller.store.views.verdicts import Watched, watched_of
from schemas.api.deployments import DeploymentStatus, DeploymentView, IntentView
from schemas.api.envelopes import Page
from schemas.api.rollouts import RolloutStatus
from schemas.manifest.deployment import DeploymentSpec

_KEPT: Final = """
    select d.uid, r.image_digest, r.model_commits
      from deployments d join revisions r on (r.deployment_uid, r.generation) = (d.uid, d.revision)
     where d.uid = any($1::uuid[])"""
_ENGINES: Final = """
    select deployment_uid, array_agg(distinct engine order by engine) as engines
      from instances
     where deployment_uid = any($1::uuid[]) and engine is not null and phase not in ('pending', 'analyzing')
     group by deployment_uid"""
_INTENTS: Final = "select * from intents where deployment_uid = any($1::uuid[]) order by source"


async def list_deployments(connection: Reader, *, limit: int, cursor: str | None = None) -> Page[DeploymentView]:
    """One page by name; includes deleted deployments until they are finished.

    Raises:
        BadCursorError: the cursor was not issued for this list.
    """
    after = open_cursor(cursor, (str, str)) or ["", "00000000-0000-0000-0000-000000000000"]
    query = """select * from deployments where (name, uid) > ($1::text, ($2::text)::uuid) order by name, uid limit $3"""
    views = await views_of(connection, await connection.fetch(query, *after, limit + 1))
    return page_of(views, limit, lambda view: (view.name, view.uid))


async def deployments_by_uid(connection: Reader, uids: Iterable[str] | None = None) -> list[DeploymentView]:
    """These deployments, or all; finished ones are missing."""
    if uids is None:
        rows = await connection.fetch("select * from deployments order by name, uid")
        keep_specs_of(len(rows))
    else:
        query = "select * from deployments where uid = any($1::uuid[]) order by name, uid"
        rows = await connection.fetch(query, list(uids))
    return await in_pieces(rows, partial(views_of, connection))


async def deployment_by_uid(connection: Reader, uid: str) -> DeploymentView:
    """One deployment.

    Raises:
        NotFoundError: it does not exist, or is finished.
    """
    views = await deployments_by_uid(connection, [uid])
    if not views:
        raise NotFoundError(f"deployment {uid} does not exist any more")
    return views[0]


async def deployment_by_name(connection: Reader, name: str) -> DeploymentView:
    """The live deployment of this name; without one, the last deleted one that is not finished.

    Raises:
        NotFoundError: there is neither.
    """
    query = """select * from deployments where name = $1
                order by deleted_at is null desc, deleted_at desc limit 1"""
    views = await views_of(connection, await connection.fetch(query, name))
    if not views:
        raise NotFoundError(f"no deployment is named {name!r}; `gpuward get deployments` lists them")
    return views[0]


async def live_by_name(connection: Reader, names: Iterable[str]) -> dict[str, DeploymentView]:
    """The live deployments among `names`."""
    query = "select * from deployments where name = any($1) and deleted_at is null"
    views = await views_of(connection, await connection.fetch(query, list(names)))
    return {view.name: view for view in views}


async def views_of(connection: Reader, rows: Sequence[Any]) -> list[DeploymentView]:
    """Views of these rows of deployments, with their present intents and verdicts."""
    uids = [row["uid"] for row in rows]
    intents: dict[Any, list[IntentView]] = defaultdict(list)
    for row in await connection.fetch(_INTENTS, uids) if uids else ():
        intents[row["deployment_uid"]].append(view_of(IntentView, row))
    live = [row for row in rows if row["deleted_at"] is None]
    watched = await watched_of(connection, [row["uid"] for row in live])
    specs = {row["uid"]: spec_from_json(row["spec"]) for row in live}
    scaled = await scaled_of(connection, specs, intents)
    rollouts = await rollouts_of(connection, specs)
    kept = await _kept_of(connection, specs)
    found = await connection.fetch(_ENGINES, uids) if uids else ()
    engines = {row["deployment_uid"]: row["engines"] for row in found}
    return [
        _view(
            row, intents[uid], watched.get(uid), scaled.get(uid), rollouts.get(uid), kept.get(uid), engines.get(uid, [])
        )
        for row in rows
        if (uid := row["uid"])
    ]


async def _kept_of(connection: Reader, specs: Mapping[Any, DeploymentSpec]) -> dict[Any, Any]:
    """What the present revisions keep of images and models, of deployments that may have any."""
    uids = [uid for uid, spec in specs.items() if spec.runtime == "docker" or _is_on_hub(spec)]
    return {row["uid"]: row for row in await connection.fetch(_KEPT, uids)} if uids else {}


def _is_on_hub(spec: DeploymentSpec) -> bool:
    return (spec.model or "").startswith("hf:") or bool(spec.serving.adapters) or bool(spec.args)


def _view(
    row: Any,
    intents: list[IntentView],
    watched: Watched | None,
    scaled: Scaled | None,
    rollout: RolloutStatus | None,
    kept: Any,
    engines: list[str],
) -> DeploymentView:
    spec = spec_from_json(row["spec"])
    deleted = row["deleted_at"] is not None
    wanted = 0 if deleted else wanted_replicas(spec, intents)
    status = view_of(
        DeploymentStatus,
        row,
        phase="deleting" if deleted else row["phase"],  # the tombstone counts before the reconciler has read it
        wanted=wanted,
        engines=engines,
        image_digest=kept["image_digest"] if kept is not None else None,
        model_commits=kept["model_commits"] if kept is not None else {},
        conditions=[
            *row["conditions"],
            *([watched.condition] if watched else []),
            *([scaled.condition] if scaled else []),
        ],
        intents=intents,
        policy=watched.policy if watched else None,
        scaling=scaled.status if scaled else None,
        rollout=rollout,
    )
    return view_of(DeploymentView, row, spec=spec, status=status)
