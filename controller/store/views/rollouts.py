"""Rollouts and revisions as the API shows them."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from controller.store.core.database import Reader, view_of
from controller.store.core.refusals import NotFoundError
from controller.store.deployments.specs import spec_from_json
from schemas.api.rollouts import RevisionList, RevisionView, RolloutStatus
from schemas.manifest.deployment import DeploymentSpec

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


async def rollouts_of(connection: Reader, specs: Mapping[Any, DeploymentSpec]) -> dict[Any, RolloutStatus]:
    """The rollouts of these deployments, of those that have one."""
    uids = [uid for uid, spec in specs.items() if spec.update == "rolling"]
    rows = await connection.fetch(_ROLLOUTS, uids) if uids else []
    return {row["deployment_uid"]: _status(row, specs[row["deployment_uid"]]) for row in rows}


def _status(row: Any, spec: DeploymentSpec) -> RolloutStatus:
    canary, since = spec.rollout.canary, row["canary_since"]
    until = since + timedelta(seconds=canary.for_s) if canary is not None and since is not None else None
    return view_of(RolloutStatus, row, canary_until=until)


async def revisions_of(connection: Reader, name: str) -> RevisionList:
    """The revisions of a live deployment.

    Raises:
        NotFoundError: no live deployment has this name.
    """
    rows = await connection.fetch(_REVISIONS, name)
    if not rows:
        raise _missing(name)
    return RevisionList(items=[view_of(RevisionView, row, spec=spec_from_json(row["spec"])) for row in rows])


async def revision_specs(connection: Reader, name: str, numbers: Sequence[int]) -> list[DeploymentSpec]:
    """The specs of these revisions of a live deployment.

    Raises:
        NotFoundError: no live deployment has this name, or a revision is not kept.
    """
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
