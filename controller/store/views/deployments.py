"""Deployments as the API shows them, with their autoscaler's numbers, revisions and load."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

from controller.domain.scaling import ScalingReason
from controller.domain.wanted import AUTOSCALER, scales, wanted_replicas
from controller.store.core.database import Reader, view_of
from controller.store.core.refusals import NotFoundError
from controller.store.deployments.specs import keep_specs_of, spec_from_json
from controller.store.scaling.gateways import SILENT_S
from controller.store.views.paging import in_batches, open_cursor, page_of
from controller.store.views.verdicts import Watched, watched_of
from schemas.api.deployments import (
    DeploymentLoad,
    DeploymentStatus,
    DeploymentView,
    IntentView,
    RevisionList,
    RevisionView,
    RolloutStatus,
    ScalingStatus,
)
from schemas.api.envelopes import Condition, Page
from schemas.manifest.deployment import DeploymentSpec

DEMAND_KNOWN: Final = "DemandKnown"
_NUMBERS: Final = """
    select s.*, w.expires_at as awake_until
      from scaling_status s
      left join wakes w on w.deployment_uid = s.deployment_uid and w.source = 'user' and w.expires_at > now()
     where s.deployment_uid = any($1::uuid[])"""
_ROLLOUTS: Final = """
    select r.*, coalesce(o.requests, 0) as requests, coalesce(o.errors, 0) as errors
      from rollouts r
      left join lateral (
             select sum(g.requests)::bigint as requests, sum(g.errors)::bigint as errors from gateway_outcomes g
              where g.deployment_uid = r.deployment_uid and g.revision = r.revision and g.attempt = r.attempt) o on true
     where r.deployment_uid = any($1::uuid[]) and r.revision is not null"""
_REVISIONS: Final = """
    select r.generation as revision, r.created_at, r.applied_at, r.actor, r.request_id, r.spec, r.image_digest,
           r.model_commits,
           r.generation = d.revision as newest,
           r.generation = coalesce((select stable from rollouts o where o.deployment_uid = d.uid), -1) as stable,
           (select count(*) from instances i where i.deployment_uid = d.uid and i.revision = r.generation)::int
               as instances
      from deployments d join revisions r on r.deployment_uid = d.uid
     where d.name = $1 and d.deleted_at is null
     order by r.applied_at desc, r.generation desc"""
_SPECS: Final = """
    select r.generation, r.spec
      from deployments d left join revisions r on r.deployment_uid = d.uid and r.generation = any($2)
     where d.name = $1 and d.deleted_at is null"""
_LOAD: Final = """
    with fresh as (select id, name, seen_at >= clock_timestamp() - make_interval(secs => $2) as reports from gateways)
    select (select coalesce(sum(m.in_flight), 0)::int from gateway_demand m join fresh on fresh.id = m.gateway_id
             where fresh.reports and m.deployment_uid = d.uid) as in_flight,
           (select coalesce(sum(m.waiting), 0)::int from gateway_demand m join fresh on fresh.id = m.gateway_id
             where fresh.reports and m.deployment_uid = d.uid) as waiting,
           array(select name from fresh where not reports order by name) as silent
      from deployments d
     where d.name = $1 order by d.deleted_at is null desc, d.deleted_at desc limit 1"""
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


@dataclass(frozen=True, slots=True)
class Scaled:
    """The autoscaler's number for a deployment, and its condition."""

    status: ScalingStatus
    condition: Condition


async def scaled_of(
    connection: Reader, specs: Mapping[Any, DeploymentSpec], intents: Mapping[Any, Sequence[IntentView]]
) -> dict[Any, Scaled]:
    """The decided numbers of those deployments whose replicas follow the requests."""
    uids = [uid for uid, spec in specs.items() if scales(spec)]
    rows = await connection.fetch(_NUMBERS, uids) if uids else []
    return {
        row["deployment_uid"]: Scaled(
            _status(row, specs[row["deployment_uid"]], intents.get(row["deployment_uid"], ())), _condition(row)
        )
        for row in rows
    }


def _status(row: Any, spec: DeploymentSpec, intents: Iterable[IntentView]) -> ScalingStatus:
    low, high = spec.replica_bounds
    caps = sorted((i.max_replicas, i.source) for i in intents if i.source != AUTOSCALER)
    capped = caps[0][1] if caps and caps[0][0] < row["number"] else ""
    return view_of(ScalingStatus, row, min=low, max=high, capped_by=capped)


def _condition(row: Any) -> Condition:
    unknown = row["reason"] == ScalingReason.DEMAND_UNKNOWN or bool(row["silent"])
    return Condition(
        type=DEMAND_KNOWN,
        status="false" if unknown else "true",
        reason=ScalingReason.DEMAND_UNKNOWN if unknown else "",
        message=_silent(row["silent"]) if unknown else "",
        since=row["at"] if unknown else row["since"],
    )


def _silent(names: Sequence[str]) -> str:
    problem = f"gateway {', '.join(names)} does not report" if names else "no gateway reports"
    return f"{problem}, so no replica is removed on its account; if it is gone for good: gpuward gateway forget NAME"


async def rollouts_of(connection: Reader, specs: Mapping[Any, DeploymentSpec]) -> dict[Any, RolloutStatus]:
    uids = [uid for uid, spec in specs.items() if spec.update == "rolling"]
    rows = await connection.fetch(_ROLLOUTS, uids) if uids else []
    return {row["deployment_uid"]: _rollout_status(row, specs[row["deployment_uid"]]) for row in rows}


def _rollout_status(row: Any, spec: DeploymentSpec) -> RolloutStatus:
    canary, since = spec.rollout.canary, row["canary_since"]
    until = since + timedelta(seconds=canary.for_s) if canary is not None and since is not None else None
    return view_of(RolloutStatus, row, canary_until=until)


async def revisions_of(connection: Reader, name: str) -> RevisionList:
    """The revisions of a live deployment. Raises NotFoundError if no live deployment has this name."""
    rows = await connection.fetch(_REVISIONS, name)
    if not rows:
        raise _missing(name)
    return RevisionList(items=[view_of(RevisionView, row, spec=spec_from_json(row["spec"])) for row in rows])


async def revision_specs(connection: Reader, name: str, numbers: Sequence[int]) -> list[DeploymentSpec]:
    """The specs of these revisions. Raises NotFoundError if the deployment is not live, or a revision not kept."""
    rows = await connection.fetch(_SPECS, name, list(numbers))
    if not rows:
        raise _missing(name)
    known = {row["generation"]: spec_from_json(row["spec"]) for row in rows if row["generation"] is not None}
    for number in numbers:
        if number not in known:
            fix = f"gpuward rollout history {name} lists them"
            raise NotFoundError(f"deployment {name!r} has no revision {number}; {fix}")
    return [known[number] for number in numbers]


def _missing(name: str) -> NotFoundError:
    return NotFoundError(f"no deployment is named {name!r}; `gpuward get deployments` lists them")


async def load_of(connection: Reader, name: str) -> DeploymentLoad:
    """The gateways' last reports, at most a second old. Raises NotFoundError if no deployment has this name."""
    rows: list[Any] = await connection.fetch(_LOAD, name, SILENT_S)
    if not rows:
        raise NotFoundError(f"no deployment is named {name!r}; `gpuward get deployments` lists them")
    return view_of(DeploymentLoad, rows[0])


async def list_deployments(connection: Reader, *, limit: int, cursor: str | None = None) -> Page[DeploymentView]:
    """One page by name, with deleted, unfinished ones. Raises BadCursorError if the cursor is of another list."""
    after = open_cursor(cursor, (str, str)) or ["", "00000000-0000-0000-0000-000000000000"]
    query = """select * from deployments where (name, uid) > ($1::text, ($2::text)::uuid) order by name, uid limit $3"""
    views = await views_of(connection, await connection.fetch(query, *after, limit + 1))
    return page_of(views, limit, lambda view: (view.name, view.uid))


async def deployments_by_uid(connection: Reader, uids: Iterable[str] | None = None) -> list[DeploymentView]:
    """`uids` None: all. Finished deployments are missing."""
    if uids is None:
        rows = await connection.fetch("select * from deployments order by name, uid")
        keep_specs_of(len(rows))
    else:
        query = "select * from deployments where uid = any($1::uuid[]) order by name, uid"
        rows = await connection.fetch(query, list(uids))
    return await in_batches(rows, partial(views_of, connection))


async def deployment_by_uid(connection: Reader, uid: str) -> DeploymentView:
    """One deployment. Raises NotFoundError if it does not exist, or is finished."""
    views = await deployments_by_uid(connection, [uid])
    if not views:
        raise NotFoundError(f"deployment {uid} does not exist any more")
    return views[0]


async def deployment_by_name(connection: Reader, name: str) -> DeploymentView:
    """The live deployment of this name, else the last deleted, unfinished one. Raises NotFoundError without either."""
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
    in_use = await connection.fetch(_ENGINES, uids) if uids else ()
    engines = {row["deployment_uid"]: row["engines"] for row in in_use}
    return [
        _view(
            row, intents[uid], watched.get(uid), scaled.get(uid), rollouts.get(uid), kept.get(uid), engines.get(uid, [])
        )
        for row in rows
        if (uid := row["uid"])
    ]


async def _kept_of(connection: Reader, specs: Mapping[Any, DeploymentSpec]) -> dict[Any, Any]:
    """Image digests and model commits of the present revisions, of deployments that may have any."""
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
