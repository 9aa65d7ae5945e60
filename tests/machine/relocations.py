"""Relocations of running instances, requested without the planner: to any GPUs, free or not."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from controller.store.core.refusals import InUseError
from controller.store.deployments import relocations
from controller.store.deployments.relocations import NewRelocation
from machine.world import World

_RUNNING = """
    select i.id, i.epoch, i.deployment_uid::text as uid,
           (select count(*) from claims c join devices d on d.uuid = c.device
             where c.instance_id = i.id and d.kind = 'gpu') as gpus
      from instances i where i.phase in ('running', 'unhealthy') order by i.id"""
_GPUS = """
    select d.uuid, w.name from devices d join workers w on w.id = d.worker_id
     where d.kind = 'gpu' and w.deleted_at is null order by d.uuid"""
_ENDED = "select state, count(*) from relocations where state in ('moved', 'abandoned') group by state"


async def request_relocations(world: World, pick: int, *, also: bool) -> None:
    """Requests the relocation of the running instance of that number, and of the next one if wanted."""
    async with world.database.connection() as connection:
        running = await connection.raw.fetch(_RUNNING)
        gpus = await connection.raw.fetch(_GPUS)
    chosen = [running[(pick + n) % len(running)] for n in range(min(1 + also, len(running)))]
    moves = [_move(one, gpus, pick + n) for n, one in enumerate(chosen) if one["gpus"] <= len(gpus)]
    with suppress(InUseError):
        await relocations.request_relocations(world.database, moves)
        world.tally["relocations requested"] += len(moves)


def _move(one: Any, gpus: Sequence[Any], first: int) -> NewRelocation:
    to = [gpus[(first + n) % len(gpus)] for n in range(one["gpus"])]
    return NewRelocation(
        instance=one["id"],
        deployment_uid=one["uid"],
        epoch=one["epoch"],
        workers=tuple(dict.fromkeys(gpu["name"] for gpu in to)),
        gpus=tuple(gpu["uuid"] for gpu in to),
        demand="another",
    )


async def count_relocations(world: World) -> None:
    """Adds the outcomes of relocations to the tally."""
    async with world.database.connection() as connection:
        for row in await connection.raw.fetch(_ENDED):
            world.tally[f"relocations {row['state']}"] += row["count"]
