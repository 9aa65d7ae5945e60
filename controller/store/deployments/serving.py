"""Running instances with their workers' proxies, as the gateway needs them, in one read."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from controller.store.core.database import Reader
from controller.store.deployments.observe import spec_from_json
from schemas.manifest.deployment import DeploymentSpec

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


@dataclass(frozen=True, slots=True)
class Serving:
    """The names of all live deployments, the running instances, and their specs.

    A spec that this version cannot read, as after a downgrade, is missing.
    """

    names: frozenset[str]
    instances: list[RunningInstance]
    specs: Mapping[RevisionKey, DeploymentSpec]


async def read_serving(connection: Reader) -> Serving:
    """Reads them. The connection must be in one REPEATABLE READ transaction."""
    names = await connection.fetch("select name from deployments where deleted_at is null")
    running = await connection.fetch(
        """select d.name, i.id, i.deployment_uid, i.revision, coalesce(i.engine, '') as engine,
                  w.proxy_address, w.proxy_secret
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
        )
        for row in running
    ]
    revisions = {one.revision for one in instances}
    specs = await _specs(connection, revisions) if revisions else {}
    return Serving(frozenset(row["name"] for row in names), instances, specs)


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
