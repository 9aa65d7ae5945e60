"""Time in the ledger machine: nothing waits; every timestamp that is compared with now is moved back."""

from datetime import timedelta
from typing import Final

from machine.world import World

HUNG_UP_AFTER_S: Final = 20.0  # of silence, after which the hub ends a connection
_LOOK_S: Final = 4.0  # less than what the autoscaler takes for a gap
_SEEN_S: Final = 30.0
_AGE: Final = (
    "update worker_liveness set last_seen = last_seen - $1::interval",
    "update lease set acquired_at = acquired_at - $1::interval",
    "update workers set fence_until = fence_until - $1::interval where fence_until is not null",
    "update workers set quarantined_until = quarantined_until - $1::interval where quarantined_until is not null",
    """update workers set recent_hellos = (
           select jsonb_agg(jsonb_set(h, '{at}', to_jsonb((h ->> 'at')::timestamptz - $1::interval)) order by n)
             from jsonb_array_elements(recent_hellos) with ordinality x (h, n))
        where recent_hellos <> '[]'""",
    "update instances set not_before = not_before - $1::interval where not_before is not null",
    "update devices set unsteady_until = unsteady_until - $1::interval where unsteady_until is not null",
    "update relocations set created_at = created_at - $1::interval, started_at = started_at - $1::interval",
    """update instances set created_at = created_at - $1::interval
        where id in (select copy_id from relocations where state = 'moving')""",
    "update rollouts set trying_since = trying_since - $1::interval, canary_since = canary_since - $1::interval",
    "update wakes set created_at = created_at - $1::interval, expires_at = expires_at - $1::interval",
    "update gateways set seen_at = seen_at - $1::interval",
    "update commands set sent_at = sent_at - $1::interval where sent_at is not null",
)


async def pass_time(world: World, seconds: float) -> None:
    """Connected and healthy agents are heard meanwhile; others may count as silent."""
    age = timedelta(seconds=seconds)
    async with world.database.connection() as connection:
        for statement in _AGE:
            await connection.raw.execute(statement, age)
    await _look(world, seconds)
    for controller in world.controllers:
        heard = []
        for link in list(controller.links):
            link.session.since -= age
            host = next((h for h in world.hosts if h.link is link), None)
            if host is not None and not host.frozen:
                heard.append(link.session)
                host.silent_s = 0.0
            elif seconds >= HUNG_UP_AFTER_S:
                controller.hang_up(link)
        await controller.flush(heard)
    for host in world.hosts:
        if host.link is None or host.frozen:
            host.pass_silence(seconds)


async def _look(world: World, seconds: float) -> None:
    """The clock goes on, and the leader looks at the demand meanwhile; a long time is one that it has not seen."""
    step_s = seconds if seconds > _SEEN_S else _LOOK_S
    while seconds > 0:
        world.clock.time_s += min(step_s, seconds)
        seconds -= step_s
        await world.gateway.tell()
        if world.leader is not None:
            await world.leader.watch.poll()
