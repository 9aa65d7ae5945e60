"""Applies the effects of many deployments' steps in one transaction: set-based statements, guarded by the read state.

The caller has checked its term in the same transaction. A lost guard raises, and the transaction rolls back.
"""

import secrets
from collections.abc import Iterable, Sequence
from typing import Any, Final

import orjson

from controller.domain.effects import ANALYZING_MESSAGE, DeploymentEffects, StaleError
from controller.domain.events import NewEvent
from controller.domain.phases import InstancePhase
from controller.domain.placement import need_error_to_json, need_to_json
from controller.store.core.events import Hints, write_events
from controller.store.core.guards import DeploymentStep, expect_rows, lock_rows
from controller.store.deployments.relocations import record_relocations
from controller.store.deployments.rollouts import write_rollouts

_ID_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"  # without vowels (no words) and look-alikes


def new_instance_id(deployment: str) -> str:
    """The deployment's name, shortened if needed, with a random suffix."""
    return f"{deployment[:50]}-{''.join(secrets.choice(_ID_ALPHABET) for _ in range(8))}"


async def carry_out(connection: Any, steps: Sequence[DeploymentStep]) -> Hints:
    """Applies the effects of all steps or of none.

    Returns:
        The hints for the transaction's one notification.

    Raises:
        StaleError: a row has changed since it was read.
    """
    if len(steps) > 1:  # a single deployment is locked by its own update
        await lock_rows(connection, deployments={s.snapshot.uid for s in steps})
    await _write_deployments(connection, steps)
    if any(s.effects.rollout is not None or s.effects.forget_rollout for s in steps):
        await write_rollouts(connection, steps)
    await _lock(connection, steps)
    await _withdraw(connection, steps)
    await _move(connection, steps)
    await _write_progress(connection, steps)
    await _release(connection, steps)
    await _restart_in_place(connection, steps)
    await _create(connection, steps)
    if any(_relocates(s.effects) for s in steps):
        await record_relocations(connection, steps)
    await _command_stops(connection, steps)
    await _remove(connection, steps)
    await _finish(connection, steps)
    await write_events(connection, _events(steps))
    woken = {s.worker_id for step in steps for s in step.effects.stops}
    woken |= {w for step in steps for r in step.effects.restarts if (w := step.worker_of(r))}
    ended = {"all" for s in steps if s.effects.relocation_ends}
    return {"command": woken, "status": {s.snapshot.uid for s in steps}, "relocation": ended}


def _relocates(effects: DeploymentEffects) -> bool:
    if effects.relocation_ends:
        return True
    return any(c.relocation is not None or c.replaced is not None for c in effects.creates)


async def _lock(connection: Any, steps: Sequence[DeploymentStep]) -> None:
    touched: set[str] = set()
    losing: set[str] = set()  # instances whose claims are released or renewed
    for step in steps:
        effects = step.effects
        losing |= {r.instance for r in effects.releases} | {r.instance for r in effects.restarts}
        touched |= {p.instance for p in effects.progress}
        touched |= {m.instance for m in effects.phase_changes} | {r.instance for r in effects.removals}
    claims = [c for s in steps for i in s.snapshot.instances if i.id in losing for c in i.claims]
    await lock_rows(
        connection,
        instances=touched | losing,
        workers={c.worker_id for c in claims},
        devices={c.device for c in claims},
    )


async def _write_deployments(connection: Any, steps: Sequence[DeploymentStep]) -> None:
    """Writes derived state and the version, so that each step of a deployment builds on the one before.

    A deleted deployment gets no new instances. Phase and epoch guard each instance. The version guards what belongs to
    no single row: the number of instances, derived state, reset failures, and events, which would be written twice.
    """
    updates = [s.effects.status for s in steps]
    await expect_rows(
        connection,
        """update deployments d
              set version = d.version + 1,
                  phase = coalesce(x.phase, d.phase), reason = coalesce(x.reason, d.reason),
                  message = coalesce(x.message, d.message), ready = coalesce(x.ready, d.ready),
                  observed_generation = coalesce(x.observed, d.observed_generation),
                  conditions = coalesce(x.conditions::jsonb, d.conditions),
                  phase_since = case when coalesce(x.phase, d.phase) = d.phase then d.phase_since
                                     else clock_timestamp() end
             from unnest($1::uuid[], $2::bigint[], $3::boolean[], $4::text[], $5::text[], $6::text[], $7::int[],
                         $8::bigint[], $9::text[])
                  as x (uid, version, creates, phase, reason, message, ready, observed, conditions)
            where d.uid = x.uid and d.version = x.version and (not x.creates or d.deleted_at is null)
        returning d.uid""",
        len(steps),
        [s.snapshot.uid for s in steps],
        [s.snapshot.version for s in steps],
        [bool(s.effects.creates) for s in steps],
        [u and str(u.phase) for u in updates],
        [u and str(u.reason) for u in updates],
        [u and u.message for u in updates],
        [u and u.ready for u in updates],
        [u and u.observed_generation for u in updates],
        [u and orjson.dumps([dict(c) for c in u.conditions]).decode() for u in updates],
    )


async def _withdraw(connection: Any, steps: Sequence[DeploymentStep]) -> None:
    ids = [id_ for s in steps for id_ in s.effects.withdrawals]
    if ids:
        await expect_rows(
            connection,
            """update commands set state = 'withdrawn'
                where id = any($1::bigint[]) and state = 'open' and sent_at is null
            returning id""",
            len(ids),
            ids,
        )


async def _move(connection: Any, steps: Sequence[DeploymentStep]) -> None:
    moves = [m for s in steps for m in s.effects.phase_changes]
    if moves:
        await expect_rows(
            connection,
            """update instances i
                  set phase = x.phase, phase_since = clock_timestamp(), reason = x.reason, message = x.message,
                      failures = coalesce(x.failures, i.failures), restarts = coalesce(x.restarts, i.restarts),
                      not_before = x.not_before, stop_reason = coalesce(x.stop_reason, i.stop_reason),
                      running_since = case when x.phase = 'running' then coalesce(i.running_since, clock_timestamp())
                                           else i.running_since end
                 from unnest($1::text[], $2::text[], $3::int[], $4::text[], $5::text[], $6::text[], $7::int[],
                             $8::int[], $9::timestamptz[], $10::text[])
                      as x (id, expected, epoch, phase, reason, message, failures, restarts, not_before, stop_reason)
                where i.id = x.id and i.phase = x.expected and i.epoch = x.epoch
            returning i.id""",
            len(moves),
            [m.instance for m in moves],
            [m.expected.value for m in moves],
            [m.epoch for m in moves],
            [m.to.value for m in moves],
            [str(m.reason) for m in moves],
            [m.message for m in moves],
            [m.failures for m in moves],
            [m.restarts for m in moves],
            [m.not_before for m in moves],
            [m.stop_reason for m in moves],
        )
        await _note_load_times(connection, [m.instance for m in moves if m.to is InstancePhase.RUNNING])
    stable = [i for s in steps for i in s.effects.forget_failures]
    if stable:
        await connection.execute("update instances set failures = 0 where id = any($1) and phase = 'running'", stable)


async def _write_progress(connection: Any, steps: Sequence[DeploymentStep]) -> None:
    progress = [p for s in steps for p in s.effects.progress]
    if progress:
        await connection.execute(
            """update instances i set reason = x.reason, message = x.message
                 from unnest($1::text[], $2::int[], $3::text[], $4::text[]) as x (id, epoch, reason, message)
                where i.id = x.id and i.epoch = x.epoch and i.phase in ('starting', 'unreachable')""",
            [p.instance for p in progress],
            [p.epoch for p in progress],
            [p.reason for p in progress],
            [p.message for p in progress],
        )


async def _note_load_times(connection: Any, running: Sequence[str]) -> None:
    """Stores how long these starts took, if they serve for the first time. Their deployments are locked already."""
    if running:
        await connection.execute(
            """update deployments d
                  set load_s = extract(epoch from clock_timestamp() - x.placed_at)
                 from (select i.deployment_uid, max(c.created_at) as placed_at
                         from instances i join claims c on c.instance_id = i.id and c.epoch = i.epoch
                        where i.id = any($1) and i.failures = 0 and i.running_since >= now()
                        group by i.deployment_uid) x
                where d.uid = x.deployment_uid""",
            list(running),
        )


async def _release(connection: Any, steps: Sequence[DeploymentStep]) -> None:
    releases = [r for s in steps for r in s.effects.releases]
    if releases:
        await connection.execute(
            """delete from claims c using unnest($1::text[], $2::int[], $3::int[]) as x (id, epoch, rank)
                where c.instance_id = x.id and c.epoch <= x.epoch and c.rank = coalesce(x.rank, c.rank)""",
            [r.instance for r in releases],
            [r.epoch for r in releases],
            [r.rank for r in releases],
        )


async def _restart_in_place(connection: Any, steps: Sequence[DeploymentStep]) -> None:
    """Moves the claims of an ended epoch to the next epoch: deleted and inserted in one transaction, rows locked."""
    restarts = [(s, r) for s in steps for r in s.effects.restarts]
    if not restarts:
        return
    ids, epochs = [r.instance for _, r in restarts], [r.epoch for _, r in restarts]
    workers = sorted({w for s, r in restarts if (w := s.worker_of(r))})
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
    held = {c.device for s, r in restarts for i in s.snapshot.instances if i.id == r.instance for c in i.claims}
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
    await _command_starts(
        connection,
        [(s.worker_of(r) or "", r.instance, epoch_of[r.instance], s.payloads[r.instance]) for s, r in restarts],
    )


async def _command_starts(connection: Any, commands: Sequence[tuple[str, str, int, dict[str, Any]]]) -> None:
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


async def _create(connection: Any, steps: Sequence[DeploymentStep]) -> None:
    """Writes new instances, and in the same round trip needs that became known."""
    rows = [
        {
            "id": name,
            "uid": s.snapshot.uid,
            "revision": c.revision,
            "phase": "analyzing" if c.analyzing else "pending",
            "message": ANALYZING_MESSAGE if c.analyzing else "",
            "replaces": c.replaces,
            "born": c.born and c.born.isoformat(),
        }
        for s in steps
        for name, c in zip(s.names, s.effects.creates, strict=True)
    ]
    needs = [
        {
            "uid": s.snapshot.uid,
            "generation": n.generation,
            "need": need_to_json(n.need) if n.need is not None else None,
            "error": need_error_to_json(n.error) if n.error is not None else None,
            "commits": dict(n.commits),
        }
        for s in steps
        if (n := s.effects.store_need) is not None
    ]
    if rows or needs:
        await connection.execute(
            """with needs as (
                   update revisions r set need = nullif(x.need, 'null'), need_error = nullif(x.error, 'null'),
                          model_commits = x.commits || r.model_commits
                     from jsonb_to_recordset($2)
                          as x (uid uuid, generation bigint, need jsonb, error jsonb, commits jsonb),
                          deployments d
                    where r.deployment_uid = x.uid and r.generation = x.generation and r.need is null
                      and d.uid = x.uid and d.deleted_at is null)
               insert into instances (id, deployment_uid, revision, phase, message, replaces, created_at)
               select id, uid, revision, phase, message, replaces, coalesce(born, now())
                 from jsonb_to_recordset($1)
                      as x (id text, uid uuid, revision bigint, phase text, message text, replaces text,
                            born timestamptz)""",
            rows,
            needs,
        )


async def _command_stops(connection: Any, steps: Sequence[DeploymentStep]) -> None:
    stops = [o for s in steps for o in s.effects.stops]
    if stops:
        await connection.execute(
            """insert into commands (worker_id, instance_id, epoch, rank, verb, payload)
               select worker_id, instance_id, epoch, rank, 'stop', payload
                 from unnest($1::uuid[], $2::text[], $3::int[], $4::int[], $5::jsonb[])
                      as x (worker_id, instance_id, epoch, rank, payload)
               on conflict (instance_id, epoch, rank, verb) do nothing""",
            [o.worker_id for o in stops],
            [o.instance for o in stops],
            [o.epoch for o in stops],
            [o.rank for o in stops],
            [{"drain_time_s": o.drain_time_s, "reason": str(o.reason)} for o in stops],
        )


async def _remove(connection: Any, steps: Sequence[DeploymentStep]) -> None:
    removals = [r for s in steps for r in s.effects.removals]
    if removals:
        await expect_rows(
            connection,
            """delete from instances i using unnest($1::text[], $2::text[], $3::int[]) as x (id, expected, epoch)
                where i.id = x.id and i.phase = x.expected and i.epoch = x.epoch
            returning i.id""",
            len(removals),
            [r.instance for r in removals],
            [r.expected.value for r in removals],
            [r.epoch for r in removals],
        )


async def _finish(connection: Any, steps: Sequence[DeploymentStep]) -> None:
    uids = [s.snapshot.uid for s in steps if s.effects.finish]
    if uids:
        await expect_rows(
            connection,
            """delete from deployments d
                where d.uid = any($1::uuid[]) and d.deleted_at is not null
                  and not exists (select 1 from instances i where i.deployment_uid = d.uid)
            returning d.uid""",
            len(uids),
            uids,
        )


def _events(steps: Iterable[DeploymentStep]) -> list[NewEvent]:
    events: list[NewEvent] = []
    for step in steps:
        own = f"deployment:{step.snapshot.uid}"
        name = {"deployment": step.snapshot.name}
        events += [
            NewEvent(str(f.reason), f.message, (own, *f.objects), {**name, **f.evidence}) for f in step.effects.events
        ]
        if step.effects.finish:
            events.append(NewEvent("finished", "the deleted deployment is gone", (own,), name))
    return events
