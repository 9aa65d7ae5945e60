"""What must hold after every step, and at rest, once faults have ceased and all messages have arrived."""

from typing import Any

from controller.store.core.ledger_audit import audit
from machine.clock import pass_time
from machine.hosts import Host
from machine.wire import agent_hears, agent_says, hub_hears
from machine.world import DELETED, World
from schemas.units import parse_size_mib

SETTLE_ROUNDS = 80
_ROUND_S = 6.0  # longer than a command waits for its answer before it is sent again
_CLAIMED = """
    select c.instance_id, c.epoch, c.rank, d.worker_id::text as worker
      from claims c join devices d on d.uuid = c.device where d.kind = 'host'"""
_FENCED = "select id::text from workers where phase = 'lost' and fence_until <= clock_timestamp()"
_PICTURE = """
    select array(select 'under way ' || clock_timestamp() from relocations where state in ('waiting', 'moving'))
        || array(select (id, phase, reason, epoch)::text from instances order by id)
        || array(select (device, instance_id, epoch)::text from claims order by device, instance_id, epoch)
        || array(select (id, verb, state)::text from commands where state = 'open' order by id)
        || array(select (uid, phase, ready)::text from deployments order by uid)
        || array(select (deployment_uid, state, reason, canary_since is null)::text from rollouts order by 1)
        || array(select (deployment_uid, source, max_replicas)::text from intents order by 1)
        || array(select (id, phase)::text from workers where deleted_at is null order by id)"""
_CALM_ROUNDS = 3
_PENDING = """
    select i.id, i.phase, i.reason, i.message, i.not_before, r.spec -> 'resources' as resources,
           r.spec -> 'placement' ->> 'workers' as workers
      from instances i join revisions r on (r.deployment_uid, r.generation) = (i.deployment_uid, i.revision)
     where i.phase in ('pending', 'analyzing')"""
_FREE = """
    select d.worker_id, d.memory_mib - d.claimed_mib as free, d.claims, d.exclusive_claims
      from devices d join workers w on w.id = d.worker_id
     where d.kind = 'gpu' and d.health = 'ok' and d.present and w.phase = 'ready' and w.gpus_known
       and w.deleted_at is null and not w.cordoned and not w.draining"""


async def check(world: World) -> None:
    """Checks the audit, the hosts' own view, and that every running process holds its claims."""
    async with world.database.snapshot() as connection:
        result = await audit(connection.raw)
        claimed = {tuple(row) for row in await connection.raw.fetch(_CLAIMED)}
        fenced = {row[0] for row in await connection.raw.fetch(_FENCED)}
    assert result.ok, result.violations
    await world.check_bounds()
    known = dict(world.deleted)
    await world.note_deleted()
    await _check_deleted(world, known)
    for host in world.hosts:
        host.check()
        if host.worker_id in fenced:
            # Only a running agent can stop what must not outlive its controller; later it is stopped as a stray.
            host.fenced |= {k for k, order in host.running.items() if order.stop_on_disconnect_after_s is not None}
        bare = [k for k in host.running if (*k, host.worker_id) not in claimed and k not in host.fenced]
        assert not bare, f"lives on {host.name} and holds nothing any more: {bare}"


async def _check_deleted(world: World, known: dict[str, set[tuple[str, int]]]) -> None:
    """After its deletion a deployment gets no new instance, and no instance gets claims under a new epoch."""
    for row in await _rows(world, DELETED):
        uid, has = str(row["uid"]), {(id_, epoch) for id_, epoch in row["has"]}
        assert has <= known.get(uid, has), f"made after the deletion: {has - known[uid]}"


async def settle(world: World) -> None:
    """Ends all faults: every host is up, connected and whole, messages arrive, and time passes until all is at rest."""
    leading = world.controllers[0]
    await world.take_over(leading)
    for host in world.hosts:
        await _mend(world, host)
    await world.gateway.rest()
    before, calm = "", 0
    for _ in range(SETTLE_ROUNDS):
        await _everything_arrives(world)
        await pass_time(world, _ROUND_S)
        assert leading.term is not None
        await leading.term.step()
        await check(world)
        after = await _picture(world)
        calm = calm + 1 if after == before else 0
        if calm == _CALM_ROUNDS:
            break
        before = after
    else:
        raise AssertionError(f"does not settle: {await _rows(world, _PENDING)}")
    await check_rest(world)


async def check_rest(world: World) -> None:
    """Checks the rest: deleted things are gone, running processes are known, and what is pending fits nowhere."""
    for query in _NONE_AT_REST:
        left = await _rows(world, query)
        assert not left, (left, await _rows(world, _SITUATION), await _rows(world, _WORKERS))
    alive = {(r["instance_id"], r["epoch"], r["rank"]) for r in await _rows(world, _ALIVE)}
    assert alive == {tuple(key) for host in world.hosts for key in host.running}
    free = await _rows(world, _FREE)
    for waiting in await _rows(world, _PENDING):
        assert waiting["reason"], f"waits without a reason: {waiting}"
        if waiting["reason"] == "reserved":  # the capacity that it needs is reserved for another
            continue
        assert not _fits(waiting["resources"], free), f"fits and waits: {waiting}, free: {free}"


_NONE_AT_REST = (
    "select uid, name from deployments where deleted_at is not null",
    "select id, phase, reason from instances where phase in ('stopping', 'replaced', 'unreachable')",
    "select id, instance_id, epoch, rank, verb, worker_id, sent_at from commands where state = 'open'",
    "select id, instance_id, copy_id, state from relocations where state in ('waiting', 'moving')",
    # A replacement stays only in the place of its original.
    """select d.name, d.spec -> 'replicas' as wanted, o.state, array_agg(i.id || ' ' || i.phase) as has
         from deployments d join instances i on i.deployment_uid = d.uid and i.phase not in ('succeeded', 'failed')
         left join rollouts o on o.deployment_uid = d.uid
        group by d.uid, o.deployment_uid
       having count(*) > case jsonb_typeof(d.spec -> 'replicas') when 'object'
                              then (d.spec -> 'replicas' ->> 'max')::int else (d.spec ->> 'replicas')::int end
                       + case when o.state <> 'complete' then (d.spec -> 'rollout' ->> 'surge')::int else 0 end""",
    # A model that nothing asks for sleeps.
    """select d.name, d.phase, i.id, i.phase from deployments d join instances i on i.deployment_uid = d.uid
        where d.spec -> 'replicas' -> 'min' = '0' and i.phase not in ('succeeded', 'failed')""",
    # A rollout stands only where a user halts it, it is a canary, or an instance has no place.
    """select d.name, o.*, array(select concat_ws(' ', i.id, i.revision, i.phase) from instances i
                                   where i.deployment_uid = d.uid) as has
         from rollouts o join deployments d on d.uid = o.deployment_uid
        where o.state = 'progressing' and not o.paused and o.revision = d.revision
          and exists (select 1 from instances i where i.deployment_uid = d.uid)
          and not exists (select 1 from instances i where i.deployment_uid = d.uid
                             and (i.phase <> 'running' or i.revision <> d.revision))""",
    *(f"select * from {table} where deployment_uid not in (select uid from deployments)"  # noqa: S608 - constants
      for table in ("rollouts", "revisions", "wakes", "intents", "model_names", "scaling_status")),
)  # fmt: skip
_WORKERS = "select id, name, phase, reason, session, highest_term, deleted_at, fence_until, reported_at from workers"
_SITUATION = """
    select i.id, i.phase, i.reason, i.epoch, i.revision,
           array(select concat_ws(' ', verb, epoch, rank, state, code) from commands where instance_id = i.id) as o,
           array(select concat_ws(' ', epoch, rank, state, reason) from processes where instance_id = i.id) as p,
           array(select concat_ws(' ', device, rank) from claims where instance_id = i.id) as c
      from instances i order by i.id"""
# What died with a host is not written off one by one.
_ALIVE = """
    select instance_id, epoch, rank from processes p join workers w on w.id = p.worker_id
     where p.state <> 'exited' and w.deleted_at is null"""


def _fits(resources: dict[str, Any], free: list[dict[str, Any]]) -> bool:
    """Whether one worker has so many GPUs with so much free memory."""
    memory = resources["gpu_memory"]
    whole = memory in ("auto", "all") or resources["exclusive"]
    by_worker: dict[Any, int] = {}
    for gpu in free:
        room = gpu["claims"] == 0 if whole else not gpu["exclusive_claims"] and gpu["free"] >= parse_size_mib(memory)
        by_worker[gpu["worker_id"]] = by_worker.get(gpu["worker_id"], 0) + room
    return any(n >= resources["gpus"] for n in by_worker.values())


async def _mend(world: World, host: Host) -> None:
    host.gpus = dict(host.sizes)
    if not host.powered:
        host.power_on()
    if host.journal is None:
        host.start_agent()
    host.thaw()
    await world.operator("uncordon", host)


async def _everything_arrives(world: World) -> None:
    """Connects every host, delivers commands, answers and reports, and lets processes reach their next state."""
    leading = world.controllers[0]
    for host in world.hosts:
        if host.worker_id is None:
            await world.join(host)
        if host.link is None and host.worker_id is not None:
            await world.connect(host, leading)
    for controller in world.controllers:
        await controller.deliver()
    for host in world.hosts:
        agent_hears(world, host)
        progress(host)
        await agent_says(host)
        hub_hears(world, host)
        await world.beat(host)
    for controller in world.controllers:
        await controller.write()
    for host in world.hosts:
        agent_hears(world, host)


def progress(host: Host) -> None:
    """Lets every process reach its next state."""
    if host.journal is None or host.frozen:
        return
    for key in list(host.running):
        match host.journal.processes[key].state:
            case "stopping":
                host.end(key, 0)
            case "starting" | "unhealthy":
                host.progress(key, "running")


async def _picture(world: World) -> str:
    async with world.database.connection() as connection:
        return str(await connection.raw.fetchval(_PICTURE))


async def _rows(world: World, query: str) -> list[dict[str, Any]]:
    async with world.database.connection() as connection:
        return [dict(row) for row in await connection.raw.fetch(query)]
