"""Start orders, and the restart in place that renews an instance's claims under its next epoch."""

from collections.abc import Sequence
from typing import Any

from controller.domain.effects import StaleError
from controller.store.core.guards import DeploymentStep, expect_rows, worker_of


async def command_starts(connection: Any, commands: Sequence[tuple[str, str, int, dict[str, Any]]]) -> None:
    """Writes start commands of rank 0: (worker id, instance, epoch, payload)."""
    await connection.execute(
        """insert into commands (worker_id, instance_id, epoch, rank, verb, payload)
           select worker_id, instance_id, epoch, 0, 'start', payload
             from unnest($1::uuid[], $2::text[], $3::int[], $4::jsonb[])
                  as x (worker_id, instance_id, epoch, payload)""",
        [o[0] for o in commands],
        [o[1] for o in commands],
        [o[2] for o in commands],
        [o[3] for o in commands],
    )


async def restart_in_place(connection: Any, steps: Sequence[DeploymentStep]) -> None:
    """Moves the claims of an ended epoch to the next one: deleted and inserted in one transaction, rows locked."""
    restarts = [(s, r) for s in steps for r in s.effects.restarts]
    if not restarts:
        return
    ids, epochs = [r.instance for _, r in restarts], [r.epoch for _, r in restarts]
    workers = sorted({w for s, r in restarts if (w := worker_of(s.facts, r))})
    await expect_rows(
        connection,
        """select id from workers
            where id = any($1::uuid[]) and phase = 'ready' and not draining and deleted_at is null
            order by id for share""",
        len(workers),
        workers,
    )
    # The claims are deleted first: their span records since when the epoch was running.
    rows = await connection.fetch(
        """delete from claims c using unnest($1::text[], $2::int[]) as x (id, epoch)
            where c.instance_id = x.id and c.epoch = x.epoch
        returning c.device, c.instance_id, c.rank, c.memory_mib, c.cpu_milli, c.exclusive, c.position""",
        ids,
        epochs,
    )
    started = await expect_rows(
        connection,
        """update instances i
              set phase = 'starting', phase_since = clock_timestamp(), not_before = null,
                  epoch = greatest(i.epoch, i.seen_epoch) + 1,
                  running_since = null, reason = '', message = ''
             from unnest($1::text[], $2::text[], $3::int[]) as x (id, expected, epoch)
            where i.id = x.id and i.phase = x.expected and i.epoch = x.epoch
        returning i.id, i.epoch""",
        len(restarts),
        ids,
        [r.expected.value for _, r in restarts],
        epochs,
    )
    held = {c.device for s, r in restarts for i in s.facts.instances if i.id == r.instance for c in i.claims}
    if {row["device"] for row in rows} != held:
        raise StaleError("claims of a restart")
    epoch_of = {row["id"]: row["epoch"] for row in started}
    await connection.execute(
        """insert into claims (device, instance_id, epoch, rank, memory_mib, cpu_milli, exclusive, position)
           select * from unnest($1::text[], $2::text[], $3::int[], $4::int[], $5::bigint[], $6::bigint[],
                                $7::boolean[], $8::int[])""",
        [r["device"] for r in rows],
        [r["instance_id"] for r in rows],
        [epoch_of[r["instance_id"]] for r in rows],
        [r["rank"] for r in rows],
        [r["memory_mib"] for r in rows],
        [r["cpu_milli"] for r in rows],
        [r["exclusive"] for r in rows],
        [r["position"] for r in rows],
    )
    await command_starts(
        connection,
        [(worker_of(s.facts, r) or "", r.instance, epoch_of[r.instance], s.payloads[r.instance]) for s, r in restarts],
    )
