"""Claims written past the scheduler: gangs, which have tables but no scheduler yet, and what the ledger must refuse."""

from typing import Any

import asyncpg

from gpuward.controller.decide.orders import start_payload
from gpuward.controller.domain.instances import ClaimFacts
from gpuward.controller.runtime.lease import check_term
from gpuward.controller.store.instances import spec_from_json
from support.machine_world import World

_WAITING_GANG = """
    select i.id, i.epoch, i.deployment_uid, d.name, d.spec
      from instances i join deployments d on d.uid = i.deployment_uid
     where i.phase = 'pending' and d.deleted_at is null and d.revision = i.revision
       and (d.spec -> 'resources' ->> 'max_workers')::int > 1
     order by i.id limit 1 for no key update of i"""
_WORKERS = """
    select id from workers
     where deleted_at is null and phase = 'ready' and gpus_known and not cordoned and not draining
     order by id for share"""
_GPU = """
    select uuid, memory_mib from devices
     where worker_id = $1 and kind = 'gpu' and health = 'ok' and present order by uuid offset $2 limit 1"""
_CLAIM = "insert into claims (device, instance_id, epoch, memory_mib, exclusive) values ($1, $2, 9999, $3, $4)"


class _UndoneError(Exception):
    """Thrown to undo a transaction."""


async def place_gang(world: World, pick: int, mib: int) -> None:
    """A waiting instance gets one GPU on each of two workers, as ranks 0 and 1; the ledger may refuse.

    Args:
        world: where.
        pick: which GPU of each worker.
        mib: of each GPU; 0: the whole of it.
    """
    leader = world.leader
    if leader is None:
        return
    try:
        async with world.database.transaction() as connection:
            await check_term(connection, leader.number)
            one = await connection.fetchrow(_WAITING_GANG)
            workers = [row["id"] for row in await connection.fetch(_WORKERS)][:2]
            if one is None or len(workers) < 2:
                return
            for rank, worker in enumerate(workers):
                gpu = await connection.fetchrow(_GPU, worker, (pick >> rank) % 2)
                if gpu is None:
                    raise _UndoneError  # noqa: TRY301 - the way to roll back
                await _write_rank(connection, one, rank, worker, gpu, mib)
            await connection.execute(
                """update instances set phase = 'scheduled', epoch = epoch + 1, reason = '', message = '',
                          phase_since = clock_timestamp(), not_before = null, explain = null where id = $1""",
                one["id"],
            )
        world.tally["gangs placed"] += 1
    except _UndoneError:
        return
    except asyncpg.CheckViolationError:
        world.tally["refusals"] += 1


async def _write_rank(connection: Any, one: Any, rank: int, worker: Any, gpu: Any, mib: int) -> None:
    claim = ClaimFacts(
        gpu["uuid"], str(worker), "gpu", one["epoch"] + 1, rank, mib or gpu["memory_mib"], 0, not mib, rank
    )
    payload = start_payload(
        spec_from_json(one["spec"]), deployment=one["name"], deployment_uid=str(one["deployment_uid"]), gpus=[claim]
    )
    await connection.executemany(
        """insert into claims (device, instance_id, epoch, rank, memory_mib, exclusive, position)
           values ($1, $2, $3, $4, $5, $6, $4)""",
        [
            (claim.device, one["id"], claim.epoch, rank, claim.memory_mib, claim.exclusive),
            (f"host-{worker}", one["id"], claim.epoch, rank, 0, False),
        ],
    )
    await connection.execute(
        """insert into commands (worker_id, instance_id, epoch, rank, verb, payload)
           values ($1, $2, $3, $4, 'start', $5)""",
        worker,
        one["id"],
        claim.epoch,
        rank,
        payload,
    )


async def claim_straight(world: World, pick: int, mib: int) -> None:
    """A claim on any GPU, in any state of it: the ledger takes it if it fits and refuses it if not; then it is undone.

    Args:
        world: where.
        pick: which GPU and which instance.
        mib: how much; 0: the whole of it.
    """
    async with world.database.connection() as connection:
        gpus = await connection.raw.fetch("select * from devices where kind = 'gpu' order by uuid")
        holders = await connection.raw.fetch("select id from instances order by id")
        if not gpus or not holders:
            return
        gpu, holder = gpus[pick % len(gpus)], holders[pick % len(holders)]["id"]
        if mib:
            fits = not gpu["exclusive_claims"] and gpu["claimed_mib"] + mib <= gpu["memory_mib"]
        else:
            fits = gpu["claims"] == 0
        try:
            async with connection.raw.transaction():
                await connection.raw.execute(_CLAIM, gpu["uuid"], holder, mib or gpu["memory_mib"], not mib)
                raise _UndoneError  # noqa: TRY301 - the way to roll back
        except _UndoneError:
            assert fits, f"the ledger took {mib or 'all'} MiB of {dict(gpu)}"
        except asyncpg.CheckViolationError:
            assert not fits, f"the ledger refused {mib or 'all'} MiB of {dict(gpu)}"
            world.tally["refusals"] += 1
