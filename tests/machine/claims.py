"""Gangs that the scheduler has placed, and claims inserted without it, which the ledger checks itself."""

import asyncpg

from machine.world import World

_GANGS = "select count(distinct (instance_id, epoch)) from claims where rank > 0"
_CLAIM = "insert into claims (device, instance_id, epoch, memory_mib, exclusive) values ($1, $2, 9999, $3, $4)"


class _UndoneError(Exception):
    """Raised to undo a transaction."""


async def count_gangs(world: World) -> None:
    """Adds to the tally how many gangs hold claims."""
    async with world.database.connection() as connection:
        world.tally["gangs placed"] += await connection.raw.fetchval(_GANGS)


async def insert_claim(world: World, pick: int, mib: int) -> None:
    """Inserts a claim on any GPU, in any state of it, and undoes it. The ledger refuses what does not fit.

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
