"""Applies policies' effects for many deployments in one transaction, guarded by the rows that were read.

The caller has checked its term in the same transaction. A lost guard raises, and the transaction rolls back. Verdicts
have no guard but their epoch: they are derived, and the next evaluation corrects them.
"""

import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from controller.domain.effects import StaleError
from controller.domain.events import NewEvent
from controller.domain.policies import NewAction, PolicyEffects, PolicySnapshot, VerdictWrite
from controller.store.core.events import notify_all, write_events
from controller.store.core.guards import expect_intents, expect_rows, lock_rows
from schemas.manifest.policy import Webhook

PolicyStep = tuple[PolicySnapshot, PolicyEffects]


async def carry_out_policies(connection: Any, steps: Sequence[PolicyStep]) -> None:
    """Applies all effects or none. Raises StaleError if a row that an action rests on has changed since it was read."""
    acting = [(snapshot, action) for snapshot, effects in steps for action in effects.actions]
    ending = [snapshot.uid for snapshot, effects in steps if effects.end_actions]
    if acting:
        await _guard(connection, {snapshot.uid: snapshot for snapshot, _ in acting}, [action for _, action in acting])
    await _write_verdicts(connection, [v for _, effects in steps for v in effects.verdicts])
    forget = [name for _, effects in steps for name in effects.forget]
    if forget:
        await connection.execute("delete from policy_verdicts where instance_id = any($1)", forget)
    await end_actions(connection, ending)
    for snapshot, action in acting:
        await _act(connection, snapshot, action)
    await write_events(connection, [_event(snapshot.name, action) for snapshot, action in acting])
    limited = {snapshot.uid for snapshot, action in acting if action.limit is not None}
    await notify_all(connection, {"deployment": limited, "status": {snapshot.uid for snapshot, _ in steps}})


def _event(deployment: str, action: NewAction) -> NewEvent:
    evidence = {"deployment": deployment, **action.evidence}
    return NewEvent(action.reason, action.message, action.objects, evidence, f"policy:{action.policy.name}")


async def end_actions(connection: Any, uids: Collection[str]) -> None:
    """Ends the open actions on these deployments."""
    if uids:
        await connection.execute(
            """update policy_actions set ended_at = clock_timestamp()
                where deployment_uid = any($1::uuid[]) and ended_at is null""",
            list(uids),
        )


async def _guard(connection: Any, snapshots: Mapping[str, PolicySnapshot], actions: Sequence[NewAction]) -> None:
    """Locks deployments, intents, policies and instances, and checks that they are as in the decision's snapshots."""
    await lock_rows(connection, deployments=list(snapshots), instances=[i for a in actions for i, _ in a.instances])
    await expect_rows(
        connection,
        """select d.uid from deployments d
             join unnest($1::uuid[], $2::bigint[], $3::bigint[]) as x (uid, generation, version) on d.uid = x.uid
            where d.generation = x.generation and d.version = x.version and d.deleted_at is null""",
        len(snapshots),
        list(snapshots),
        [f.generation for f in snapshots.values()],
        [f.version for f in snapshots.values()],
    )
    named = {(a.policy.uid, a.policy.generation) for a in actions if a.policy.uid is not None}
    await expect_rows(
        connection,
        """select p.uid from policies p join unnest($1::uuid[], $2::bigint[]) as x (uid, generation) on p.uid = x.uid
            where p.generation = x.generation order by p.uid for share of p""",
        len(named),
        [uid for uid, _ in named],
        [generation for _, generation in named],
    )
    await expect_rows(
        connection,
        """select i.id from instances i join unnest($1::text[], $2::int[]) as x (id, epoch) on i.id = x.id
            where i.epoch = x.epoch and i.phase = 'running'""",
        sum(len(a.instances) for a in actions),
        [name for a in actions for name, _ in a.instances],
        [epoch for a in actions for _, epoch in a.instances],
    )
    await expect_intents(connection, {uid: snapshot.intents for uid, snapshot in snapshots.items()})
    if await connection.fetchval(
        """select 1 from wakes where deployment_uid = any($1::uuid[]) and source = 'user'
              and expires_at > clock_timestamp() limit 1""",
        list(snapshots),
    ):
        raise StaleError("a deployment that its user keeps awake")


async def _write_verdicts(connection: Any, writes: Sequence[VerdictWrite]) -> None:
    if not writes:
        return
    await connection.execute(
        """insert into policy_verdicts as v (instance_id, epoch, deployment_uid, policy, policy_uid, policy_generation,
                   action, dry_run, verdict, reason, message, low_since, due_at, evidence, acted)
           select i.id, x.epoch, i.deployment_uid, x.policy, x.policy_uid, x.generation, x.action, x.dry_run, x.verdict,
                  x.reason, x.message, to_timestamp(x.low_since), to_timestamp(x.due_at), x.evidence, x.acted
             from unnest($1::text[], $2::int[], $3::text[], $4::uuid[], $5::bigint[], $6::text[], $7::boolean[],
                         $8::text[], $9::text[], $10::text[], $11::float8[], $12::float8[], $13::jsonb[], $14::text[])
                  as x (id, epoch, policy, policy_uid, generation, action, dry_run, verdict, reason, message, low_since,
                        due_at, evidence, acted)
             join instances i on i.id = x.id and i.epoch = x.epoch
            order by i.id
           on conflict (instance_id) do update
              set epoch = excluded.epoch, policy = excluded.policy, policy_uid = excluded.policy_uid,
                  policy_generation = excluded.policy_generation, action = excluded.action, dry_run = excluded.dry_run,
                  verdict = excluded.verdict, reason = excluded.reason, message = excluded.message,
                  low_since = excluded.low_since, due_at = excluded.due_at, evidence = excluded.evidence,
                  acted = excluded.acted,
                  since = case when v.verdict = excluded.verdict and v.epoch = excluded.epoch then v.since
                               else clock_timestamp() end""",
        [w.instance for w in writes],
        [w.epoch for w in writes],
        [w.policy.name for w in writes],
        [w.policy.uid for w in writes],
        [w.policy.generation for w in writes],
        [w.policy.spec.action for w in writes],
        [w.policy.spec.dry_run for w in writes],
        [w.verdict.verdict for w in writes],
        [w.verdict.reason for w in writes],
        [w.verdict.message for w in writes],
        [w.verdict.low_since for w in writes],
        [w.verdict.due_at for w in writes],
        [dict(w.evidence) for w in writes],
        [w.acted for w in writes],
    )


async def _act(connection: Any, snapshot: PolicySnapshot, action: NewAction) -> None:
    """Writes an action, its limit and its webhook. Only an action with a limit stays open, until that is removed."""
    id_ = await connection.fetchval(
        """insert into policy_actions (policy, policy_uid, policy_generation, action, dry_run, deployment_uid,
                                       deployment, instances, gpus, evidence, ended_at)
           values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, case when $11 then null else now() end) returning id""",
        action.policy.name,
        action.policy.uid,
        action.policy.generation,
        action.action,
        action.policy.spec.dry_run,
        snapshot.uid,
        snapshot.name,
        [name for name, _ in action.instances],
        action.gpus,
        dict(action.evidence),
        action.limit is not None,
    )
    if action.limit is not None:
        await connection.execute(
            """insert into intents (deployment_uid, source, max_replicas, reason, message, instances)
               values ($1, 'policy', $2, 'policy_idle', $3, $4)
               on conflict (deployment_uid, source)
               do update set max_replicas = excluded.max_replicas, reason = excluded.reason, message = excluded.message,
                             instances = excluded.instances, created_at = now()""",
            snapshot.uid,
            action.limit.max_replicas,
            action.message,
            list(action.limit.victims),
        )
        await connection.execute("delete from outgrown_caps where deployment_uid = $1", snapshot.uid)
    if action.webhook is not None:
        await _enqueue_webhook(connection, snapshot, action, action.webhook, id_)


async def _enqueue_webhook(
    connection: Any, snapshot: PolicySnapshot, action: NewAction, webhook: Webhook, id_: int
) -> None:
    payload = {
        "type": action.reason,
        "timestamp": datetime.fromtimestamp(snapshot.now, UTC).isoformat(),
        "data": {"deployment": snapshot.name, "deployment_uid": snapshot.uid, "message": action.message}
        | {"evidence": dict(action.evidence)},
    }
    await connection.execute(
        "insert into webhook_deliveries (id, action_id, url, secret, payload) values ($1, $2, $3, $4, $5)",
        uuid.uuid4(),
        id_,
        webhook.url,
        webhook.secret,
        orjson.dumps(payload).decode(),
    )
