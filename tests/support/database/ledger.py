"""Rows of the ledger written by hand, for tests below API and hub: hosts, deployments, and agents' reports."""

import uuid
from dataclasses import dataclass
from typing import Any

import orjson

from controller.engines.registry import engine_for
from controller.scheduling.estimate import input_hash
from controller.store.core.database import Database
from schemas.manifest.deployment import DeploymentSpec

GIB = 1024


@dataclass(frozen=True)
class Host:
    id: str
    name: str
    gpus: tuple[str, ...]


async def add_host(db: Database, name: str, *, gpus: int = 8, gib: int = 40, phase: str = "ready") -> Host:
    id_ = uuid.uuid4()
    uuids = tuple(f"GPU-{name}-{n}" for n in range(gpus))
    async with db.transaction() as c:
        await c.execute(
            """insert into workers (id, name, credential_hash, proxy_secret, phase, os, arch, driver, simulated,
                                    gpus_known, session, reported_at)
               values ($1, $2, $3, 's', $4, 'linux', 'x86_64', '580.95', true, true, 1, now())""",
            id_,
            name,
            id_.bytes,
            phase,
        )
        await c.execute(
            """insert into devices (uuid, worker_id, kind, index, memory_mib, reported_mib, cpu_milli)
               values ($1, $2, 'host', 0, $3, $3, 64000)""",
            f"host-{id_}",
            id_,
            1024 * GIB,
        )
        await c.executemany(
            """insert into devices (uuid, worker_id, kind, index, model, compute_capability, memory_mib, reported_mib)
               values ($1, $2, 'gpu', $3, 'H100', '9.0', $4, $4)""",
            [(u, id_, n, gib * GIB) for n, u in enumerate(uuids)],
        )
    return Host(str(id_), name, uuids)


async def add_deployment(db: Database, name: str, **fields: Any) -> str:
    spec = DeploymentSpec.model_validate({"engine": "simulated", **fields})
    uid = uuid.uuid4()
    raw = orjson.loads(spec.model_dump_json())
    async with db.transaction() as c:
        await c.execute(
            "insert into deployments (uid, name, generation, revision, spec) values ($1, $2, 1, 1, $3)", uid, name, raw
        )
        await c.execute(
            "insert into revisions (deployment_uid, generation, spec, input_hash) values ($1, 1, $2, $3)",
            uid,
            raw,
            input_hash(spec, engine_for(spec)),
        )
    return str(uid)


async def add_revision(db: Database, uid: str, generation: int, **fields: Any) -> None:
    """A changed spec of the deployment, which needs new processes."""
    spec = DeploymentSpec.model_validate({"engine": "simulated", **fields})
    raw = orjson.loads(spec.model_dump_json())
    async with db.transaction() as c:
        await c.execute(
            "insert into revisions (deployment_uid, generation, spec, input_hash) values ($1, $2, $3, $4)",
            uid, generation, raw, input_hash(spec, engine_for(spec)),
        )  # fmt: skip
        await c.execute(
            "update deployments set generation = $2, revision = $2, spec = $3 where uid = $1", uid, generation, raw
        )


async def add_instance(db: Database, uid: str, id_: str, *, phase: str = "pending", epoch: int = 0) -> str:
    async with db.transaction() as c:
        await c.execute(
            "insert into instances (id, deployment_uid, revision, phase, epoch) values ($1, $2, 1, $3, $4)",
            id_,
            uuid.UUID(uid),
            phase,
            epoch,
        )
    return id_


async def claim(db: Database, device: str, instance: str, mib: int, *, exclusive: bool = False, epoch: int = 1) -> None:
    async with db.transaction() as c:
        await c.execute(
            "insert into claims (device, instance_id, epoch, memory_mib, exclusive) values ($1, $2, $3, $4, $5)",
            device,
            instance,
            epoch,
            mib,
            exclusive,
        )


async def report(
    db: Database, instance: str, state: str, *, reason: str | None = None, code: int | None = None
) -> None:
    """Writes an agent's report of the instance's current epoch; its start command counts as sent and accepted."""
    async with db.transaction() as c:
        await c.execute(
            """update commands set state = 'accepted', sent_at = coalesce(sent_at, now()), answered_at = now()
                where instance_id = $1 and state = 'open'""",
            instance,
        )
        await c.execute(
            """insert into processes (instance_id, epoch, rank, worker_id, state, reason, exit_code, seq, session)
               select i.id, i.epoch, 0, d.worker_id, $2, $3, $4, 1, 1
                 from instances i join claims c on c.instance_id = i.id join devices d on d.uuid = c.device
                where i.id = $1 limit 1
               on conflict (instance_id, epoch, rank)
               do update set state = excluded.state, reason = excluded.reason, exit_code = excluded.exit_code""",
            instance,
            state,
            reason,
            code,
        )


async def rows(db: Database, query: str, *args: Any) -> list[dict[str, Any]]:
    async with db.connection() as c:
        return [dict(r) for r in await c.fetch(query, *args)]
