"""The map in columns: its figures are those of the lists of GPUs and workers."""

import gzip
import uuid
from typing import Any

from controller.store.core.database import Database
from controller.store.views.gpus import list_gpus
from controller.store.views.map import read_map
from controller.store.views.workers import list_workers
from schemas.api.gpus import MapView
from schemas.api.view import from_plain, to_json, to_plain
from support.database.ledger import GIB, add_deployment, add_host, add_instance, claim

MIB = 2**20
WORKERS, GPUS_EACH = 1_000, 8
LIMIT_BYTES = 300_000  # compressed


async def execute(db: Database, *queries: str) -> None:
    async with db.transaction() as connection:
        for query in queries:
            await connection.execute(query)


async def every_state(db: Database) -> None:
    """Workers of every state, and GPUs of every state, held in every way."""
    for phase in ("joining", "ready", "unreachable", "lost"):
        await add_host(db, phase, gpus=2, phase=phase)
    for name in ("cordoned", "draining", "drained", "deleted", "kept", "conditions", "quarantined"):
        await add_host(db, name, gpus=2)
    await add_host(db, "states", gpus=9)
    for name in ("a", "b"):
        uid = await add_deployment(db, name)
        for n in range(3):
            await add_instance(db, uid, f"{name}-{n}", phase="running", epoch=2)
    await claim(db, "GPU-states-0", "a-0", 8 * GIB, epoch=2)
    await claim(db, "GPU-states-0", "a-1", 8 * GIB, epoch=2)
    await claim(db, "GPU-states-1", "a-2", 8 * GIB, epoch=2)
    await claim(db, "GPU-states-1", "b-0", 4 * GIB, epoch=2)
    await claim(db, "GPU-states-2", "b-1", 40 * GIB, exclusive=True, epoch=2)
    await claim(db, "GPU-states-3", "b-2", GIB, epoch=1)
    await claim(db, "GPU-states-3", "b-2", 2 * GIB, epoch=2)
    await claim(db, "GPU-draining-0", "a-0", GIB, epoch=1)
    await claim(db, "GPU-kept-0", "a-1", GIB, epoch=1)
    await execute(
        db,
        "update workers set cordoned = true where name in ('cordoned', 'draining')",
        "update workers set draining = true where name in ('draining', 'drained')",
        "update workers set deleted_at = now() where name in ('deleted', 'kept')",
        "update workers set reason = 'breaker_open' where name = 'unreachable'",
        """update workers set conditions =
           '[{"type": "ContainersUsable", "status": "false", "reason": "runtime_unsupported", "message": "no Docker"},
             {"type": "GpusReadable", "status": "false", "reason": "driver_mismatch", "message": "550 is loaded"}]'
            where name = 'conditions'""",
        """update workers set phase = 'unreachable', reason = 'two_identities',
                  quarantined_until = now() + interval '1 min' where name = 'quarantined'""",
        """insert into worker_liveness (worker_id, session, connected, last_seen)
           select id, session, true, now() from workers where name in ('quarantined', 'states')""",
        """update devices set health = 'unhealthy', health_reason = 'xid_79: GPU has fallen off the bus'
            where uuid in ('GPU-states-3', 'GPU-states-4', 'GPU-states-8')""",
        "update devices set health = 'unknown', health_reason = 'nvml_starting' where uuid = 'GPU-states-5'",
        "update devices set mig_mode = true where uuid = 'GPU-states-6'",
        "update devices set cordoned = true where uuid in ('GPU-states-4', 'GPU-states-5', 'GPU-states-7')",
        "update devices set present = false where uuid = 'GPU-states-8'",
        "update devices set model = 'A100', reserved_mib = 1024, foreign_mib = 512 where uuid = 'GPU-states-1'",
        """insert into device_readings values
           ('GPU-states-0', 512, 37.5, now()), ('GPU-states-1', 0, 0, now()), ('GPU-states-2', null, null, now()),
           ('GPU-states-3', 512, 50, now() - interval '2 min'), ('GPU-states-8', 512, 50, now())""",
    )


def gpus_of(view: MapView) -> dict[str, dict[str, Any]]:
    columns = to_plain(view.gpus)
    found = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    for one in found:
        one |= {"worker": view.workers.name[one["worker"]], "model": view.models[one["model"]]}
    return {one["uuid"]: one for one in found}


async def test_its_figures_are_those_of_the_lists(migrated: Database) -> None:
    await every_state(migrated)
    async with migrated.snapshot() as c:
        found = await read_map(c)
        gpus = (await list_gpus(c, limit=1000)).items
        workers = (await list_workers(c, limit=1000)).items
    assert from_plain(MapView, to_plain(found)) == found, "the columns have the types that the schema says"

    of_map = gpus_of(found)
    assert list(of_map) == [one.uid for one in gpus]
    for one in gpus:
        status = one.status
        deployments = {held.deployment for held in status.claims}
        assert of_map[one.uid] | {"state": None} == {
            "worker": status.worker,
            "index": status.index,
            "uuid": one.uid,
            "model": status.model,
            "memory_total_bytes": status.memory_mib * MIB,
            "memory_claimed_bytes": status.claimed_mib * MIB,
            "memory_free_bytes": status.free_mib * MIB,
            "memory_used_bytes": None if status.used_mib is None else status.used_mib * MIB,
            "utilization": status.utilization,
            "state": None,
            "message": status.health_reason or None,
            "cordoned": one.spec.cordoned,
            "holder": next(iter(deployments)) if len(deployments) == 1 else None,
            "holders": len({held.instance for held in status.claims}),
            "exclusive": any(held.exclusive for held in status.claims),
        }

    columns = found.workers
    assert columns.name == [one.name for one in workers]
    assert columns.state == [one.status.state for one in workers]
    assert columns.connected == [one.status.connected for one in workers]
    assert columns.instances == [one.status.instances for one in workers]
    assert columns.labels == [one.status.labels for one in workers]
    assert columns.cordoned == [one.spec.cordoned for one in workers]
    assert columns.draining == [one.spec.draining for one in workers]


async def test_each_state_has_a_word_and_what_is_not_sampled_is_unknown(migrated: Database) -> None:
    await every_state(migrated)
    async with migrated.snapshot() as c:
        found = await read_map(c)
    of_map = gpus_of(found)
    assert [of_map[f"GPU-states-{n}"]["state"] for n in range(9)] == [
        "ok", "ok", "ok", "unhealthy", "unhealthy", "cordoned", "mig_mode", "cordoned", "absent",
    ]  # fmt: skip
    assert [of_map[f"GPU-states-{n}"]["utilization"] for n in range(5)] == [37.5, 0.0, None, None, None]
    assert of_map["GPU-states-3"]["message"] == "xid_79: GPU has fallen off the bus"
    assert [of_map[f"GPU-states-{n}"]["holder"] for n in range(5)] == ["a", None, "b", "b", None]
    assert [of_map[f"GPU-states-{n}"]["holders"] for n in range(5)] == [2, 2, 1, 1, 0]

    rows = zip(found.workers.name, found.workers.state, found.workers.reason, found.workers.message, strict=True)
    why = {name: (state, reason, message) for name, state, reason, message in rows}
    assert "deleted" not in why, "nothing is claimed on it"
    assert why["kept"] == ("deleted", "", None)
    assert why["lost"] == ("lost", "", None)
    assert why["drained"] == ("drained", "", None)
    assert why["draining"] == ("draining", "", None)
    assert why["conditions"] == ("ready", "driver_mismatch", "550 is loaded")
    assert why["unreachable"][1:] == (
        "breaker_open",
        "So many workers are silent at once that none of them is given up.",
    )
    assert why["quarantined"][:2] == ("quarantined", "two_identities")
    since = dict(zip(found.workers.name, found.workers.since, strict=True))
    assert since["lost"] is not None
    assert since["kept"] is not None
    assert since["cordoned"] is None, "the phase began then, not the cordon"


async def test_without_workers_it_is_empty(migrated: Database) -> None:
    async with migrated.snapshot() as c:
        found = await read_map(c)
    assert (found.workers.name, found.gpus.uuid, found.models) == ([], [], [])


async def test_eight_thousand_gpus_are_small(migrated: Database) -> None:
    await many_gpus(migrated)
    async with migrated.snapshot() as c:
        body = to_json(await read_map(c))
    assert body.count(b"GPU-") == WORKERS * GPUS_EACH
    assert len(gzip.compress(body, 6)) <= LIMIT_BYTES


async def many_gpus(db: Database) -> None:
    """Workers with GPUs of random UUIDs, a held share of them, and a reading of nearly each."""
    uids = [uuid.UUID(await add_deployment(db, f"model-{n}")) for n in range(40)]
    async with db.transaction() as c:
        await c.execute(
            """insert into workers (id, name, credential_hash, proxy_secret, phase, os, arch, driver, hostname,
                                    simulated, gpus_known, session, reported_at, labels)
               select gen_random_uuid(), 'gpu-' || n, int8send(n), 's',
                      case when n % 50 = 0 then 'lost' else 'ready' end, 'linux', 'x86_64',
                      '580.95', 'gpu-' || n, true, true, 1, now(),
                      jsonb_build_object('zone', chr(97 + (n % 4)::int))
                 from generate_series(1::bigint, $1) n""",
            WORKERS,
        )
        await c.execute(
            """insert into devices (uuid, worker_id, kind, index, model, compute_capability, memory_mib, reported_mib,
                                    health, health_reason)
               select 'GPU-' || gen_random_uuid(), w.id, 'gpu', n, 'NVIDIA H100 80GB HBM3', '9.0', 81559, 81559,
                      case when random() < 0.01 then 'unhealthy' else 'ok' end, ''
                 from workers w, generate_series(0, $1::int - 1) n""",
            GPUS_EACH,
        )
        await c.execute(
            """insert into instances (id, deployment_uid, revision, phase, epoch)
               select 'i-' || row_number() over (), ($1::uuid[])[1 + (random() * 39)::int], 1, 'running', 1
                 from devices where random() < 0.8""",
            uids,
        )
        await c.execute(
            """insert into claims (device, instance_id, epoch, memory_mib, exclusive)
               select d.uuid, i.id, 1, 1024 * (1 + (random() * 60)::int), false
                 from (select uuid, row_number() over (order by uuid) as n from devices) d
                 join (select id, row_number() over (order by id) as n from instances) i using (n)"""
        )
        await c.execute(
            """insert into device_readings
               select uuid, (random() * 80000)::int, (random() * 100)::int, now() from devices where random() < 0.98"""
        )
