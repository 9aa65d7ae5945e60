"""Moves of running instances, asked for past the planner: to anywhere, whether there is room or not."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from controller.store.core.refusals import InUseError
from controller.store.deployments.relocations import NewRelocation, request_relocations
from support.machine_world import World

_RUNNING = """
    select i.id, i.epoch, i.deployment_uid::text as uid,
           (select count(*) from claims c join devices d on d.uuid = c.device
             where c.instance_id = i.id and d.kind = 'gpu') as gpus
      from instances i where i.phase in ('running', 'unhealthy') order by i.id"""
_GPUS = """
    select d.uuid, w.name from devices d join workers w on w.id = d.worker_id
     where d.kind = 'gpu' and w.deleted_at is null order by d.uuid"""
_ENDED = "select state, count(*) from relocations where state in ('moved', 'abandoned') group by state"


async def ask_for_moves(world: World, pick: int, *, also: bool) -> None:
    """The running instance of that number, and where wanted the next one, shall move to GPUs from that number on."""
    async with world.database.connection() as connection:
        running = await connection.raw.fetch(_RUNNING)
        gpus = await connection.raw.fetch(_GPUS)
    chosen = [running[(pick + n) % len(running)] for n in range(min(1 + also, len(running)))]
    moves = [_move(one, gpus, pick + n) for n, one in enumerate(chosen) if one["gpus"] <= len(gpus)]
    with suppress(InUseError):
        await request_relocations(world.database, moves)
        world.tally["moves asked for"] += len(moves)


def _move(one: Any, gpus: Sequence[Any], first: int) -> NewRelocation:
    to = [gpus[(first + n) % len(gpus)] for n in range(one["gpus"])]
    return NewRelocation(
        instance=one["id"],
        deployment_uid=one["uid"],
        epoch=one["epoch"],
        workers=tuple(dict.fromkeys(gpu["name"] for gpu in to)),
        gpus=tuple(gpu["uuid"] for gpu in to),
        demand="somebody",
    )


async def count_moves(world: World) -> None:
    """Adds how many moves came to which end."""
    async with world.database.connection() as connection:
        for row in await connection.raw.fetch(_ENDED):
            world.tally[f"moves {row['state']}"] += row["count"]
