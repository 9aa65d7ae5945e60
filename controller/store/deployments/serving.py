"""Running instances with their workers' proxies, as the gateway needs them, in one read."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from controller.store.core.database import Reader
from controller.store.deployments.observe import spec_from_json
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.serving import ServingLimits

RevisionKey = tuple[Any, int]  # deployment's uid, generation


@dataclass(frozen=True, slots=True)
class RunningInstance:
    """A running instance whose worker has a proxy."""

    deployment: str  # its name
    instance: str
    address: str  # HOST:PORT of the worker's proxy
    secret: str
    revision: RevisionKey
    engine: str  # chosen by placement; empty: the spec leaves no choice
    limits: ServingLimits


@dataclass(frozen=True, slots=True)
class Stopped:
    """Why a deployment wants no replicas.

    Attributes:
        source: of the limit: user or policy; empty: its spec asks for none.
        policy: its name; empty: not a policy, or an inline one.
    """

    source: str
    policy: str = ""

    def remedy(self, deployment: str) -> str:
        """What starts it again."""
        return f"gpuward start {deployment}" if self.source else f"gpuward scale {deployment} 1"


@dataclass(frozen=True, slots=True)
class Serving:
    """The names of all live deployments, the running instances, their specs, and which are stopped.

    A spec that this version cannot read, as after a downgrade, is missing.
    """

    names: frozenset[str]
    instances: list[RunningInstance]
    specs: Mapping[RevisionKey, DeploymentSpec]
    stopped: Mapping[str, Stopped]


# A user's stop goes before a policy's: it is the one that lasts.
_DEPLOYMENTS: Final = """
    select d.name, (d.spec->>'replicas')::int as replicas, limited.source,
           (select a.policy from policy_actions a
             where limited.source = 'policy' and a.deployment_uid = d.uid and a.ended_at is null
             order by a.id desc limit 1) as policy
      from deployments d
      left join lateral (
             select i.source from intents i
              where i.deployment_uid = d.uid and i.max_replicas = 0 and i.source in ('user', 'policy')
              order by i.source = 'policy' limit 1) limited on true
     where d.deleted_at is null"""


async def read_serving(connection: Reader) -> Serving:
    """Reads them. The connection must be in one REPEATABLE READ transaction."""
    names = await connection.fetch(_DEPLOYMENTS)
    running = await connection.fetch(
        """select d.name, i.id, i.deployment_uid, i.revision, coalesce(i.engine, '') as engine,
                  d.spec->'serving' as limits, w.proxy_address, w.proxy_secret
             from instances i
             join deployments d on d.uid = i.deployment_uid and d.deleted_at is null
             join processes p on p.instance_id = i.id and p.epoch = i.epoch and p.rank = 0
             join workers w on w.id = p.worker_id and w.proxy_address <> '' and w.deleted_at is null
            where i.phase = 'running' order by d.name, i.id"""
    )
    instances = [
        RunningInstance(
            deployment=row["name"],
            instance=row["id"],
            address=row["proxy_address"],
            secret=row["proxy_secret"],
            revision=(row["deployment_uid"], row["revision"]),
            engine=row["engine"],
            limits=_limits(row["limits"]),
        )
        for row in running
    ]
    revisions = {one.revision for one in instances}
    specs = await _specs(connection, revisions) if revisions else {}
    stopped = {
        row["name"]: Stopped(row["source"] or "", row["policy"] or "")
        for row in names
        if row["source"] is not None or row["replicas"] == 0
    }
    return Serving(frozenset(row["name"] for row in names), instances, specs, stopped)


def _limits(stored: Any) -> ServingLimits:
    """The present limits, which change in place; the defaults where an older version wrote none."""
    try:
        return ServingLimits.model_validate(stored or {})
    except ValueError:  # written by another version
        return ServingLimits()


async def _specs(connection: Reader, revisions: set[RevisionKey]) -> dict[RevisionKey, DeploymentSpec]:
    rows = await connection.fetch(
        """select r.deployment_uid, r.generation, r.spec
             from revisions r
             join unnest($1::uuid[], $2::bigint[]) as x (uid, generation)
               on x.uid = r.deployment_uid and x.generation = r.generation""",
        [uid for uid, _ in revisions],
        [generation for _, generation in revisions],
    )
    found: dict[RevisionKey, DeploymentSpec] = {}
    for row in rows:
        with suppress(ValueError):  # one that cannot be read must not stop the others from being served
            found[row["deployment_uid"], row["generation"]] = spec_from_json(row["spec"])
    return found
