"""Writes the autoscaler's numbers, guarded by the rows that were read: generation and intents of each deployment.

The caller has checked its term in the same transaction. A lost guard raises, and the transaction rolls back.
"""

import uuid
from collections.abc import Collection, Sequence
from typing import Any, Final

from controller.domain.events import NewEvent
from controller.domain.instances import Intent
from controller.domain.scaling import ScalingReason, ScalingStep
from controller.domain.wanted import follows_requests, kept_number
from controller.store.core.events import notify_all, write_events
from controller.store.core.guards import expect_intents, expect_rows, lock_rows
from schemas.manifest.deployment import DeploymentSpec

R = ScalingReason
ACTOR: Final = "autoscaler"
_INTENT: Final = """
    insert into intents (deployment_uid, source, min_replicas, max_replicas, reason, message)
    select uid, 'autoscaler', number, number, reason, message
      from unnest($1::uuid[], $2::int[], $3::text[], $4::text[]) as x (uid, number, reason, message)
    on conflict (deployment_uid, source) do update
       set min_replicas = excluded.min_replicas, max_replicas = excluded.max_replicas, reason = excluded.reason,
           message = excluded.message, created_at = now()"""
_OUTGROWN: Final = """
    with x as (select * from unnest($1::uuid[], $2::boolean[]) as x (uid, outgrown)),
    within as (delete from outgrown_caps o using x where o.deployment_uid = x.uid and not x.outgrown)
    insert into outgrown_caps (deployment_uid)
    select uid from x join intents i on i.deployment_uid = x.uid and i.source = 'policy' where x.outgrown
        on conflict do nothing"""
_STATUS: Final = """
    insert into scaling_status as s (deployment_uid, number, reason, message, dry_run, silent, evidence)
    select uid, number, reason, message, dry_run, string_to_array(silent, E'\\n'), evidence
      from unnest($1::uuid[], $2::int[], $3::text[], $4::text[], $5::boolean[], $6::text[], $7::jsonb[])
           as x (uid, number, reason, message, dry_run, silent, evidence)
    on conflict (deployment_uid) do update
       set number = excluded.number, reason = excluded.reason, message = excluded.message,
           dry_run = excluded.dry_run, silent = excluded.silent, evidence = excluded.evidence, at = clock_timestamp(),
           since = case when s.number = excluded.number then s.since else clock_timestamp() end"""
_INTENTS_OF: Final = "select source, min_replicas, max_replicas from intents where deployment_uid = $1"
_NUMBER: Final = """
    insert into intents (deployment_uid, source, min_replicas, max_replicas, reason)
    values ($1, 'autoscaler', $2, $2, 'scaled')
    on conflict (deployment_uid, source) do update
       set min_replicas = excluded.min_replicas, max_replicas = excluded.max_replicas, reason = excluded.reason,
           message = '', created_at = now()"""


async def carry_out_scaling(connection: Any, steps: Sequence[ScalingStep]) -> None:
    """Writes all numbers or none. Raises StaleError if a deployment that gets a number has changed since the read."""
    changing = [step for step in steps if step.applies and not step.snapshot.spec.scaling.dry_run]
    if changing:
        await _guard(connection, changing)
        await connection.execute(
            _INTENT,
            [s.snapshot.uid for s in changing],
            [s.wish.number for s in changing],
            [intent_reason(s) for s in changing],
            [s.wish.message for s in changing],
        )
    await connection.execute(_OUTGROWN, [s.snapshot.uid for s in steps], [s.outgrown for s in steps])
    lifting = [step.snapshot.uid for step in changing if step.lifts_policy or step.lifts_cap]
    if lifting:
        await connection.execute(
            "delete from intents where deployment_uid = any($1::uuid[]) and source = 'policy'", lifting
        )
    await _write_status(connection, steps)
    await write_events(connection, [event for step in steps if step.applies for event in _events(step)])
    changed = [step.snapshot.uid for step in changing]
    await notify_all(connection, {"deployment": changed, "status": [step.snapshot.uid for step in steps]})


async def forget_scaling(connection: Any, uids: Collection[str]) -> None:
    """Removes the rows of deployments that are gone, or whose replicas are a number now."""
    if uids:
        await connection.execute("delete from scaling_status where deployment_uid = any($1::uuid[])", list(uids))
        await connection.execute(
            "delete from intents where deployment_uid = any($1::uuid[]) and source = 'autoscaler'", list(uids)
        )


async def _guard(connection: Any, steps: Sequence[ScalingStep]) -> None:
    snapshots = {step.snapshot.uid: step.snapshot for step in steps}
    await lock_rows(connection, deployments=list(snapshots))
    await expect_rows(
        connection,
        """select d.uid from deployments d
             join unnest($1::uuid[], $2::bigint[]) as x (uid, generation) on d.uid = x.uid
            where d.generation = x.generation and d.deleted_at is null""",
        len(snapshots),
        list(snapshots),
        [f.generation for f in snapshots.values()],
    )
    await expect_intents(connection, {uid: snapshot.intents for uid, snapshot in snapshots.items()})


async def _write_status(connection: Any, steps: Sequence[ScalingStep]) -> None:
    await connection.execute(
        _STATUS,
        [s.snapshot.uid for s in steps],
        [s.wish.number for s in steps],
        [str(s.wish.reason) for s in steps],
        [s.wish.message for s in steps],
        [s.snapshot.spec.scaling.dry_run for s in steps],
        ["\n".join(s.silent) for s in steps],
        [dict(s.evidence) for s in steps],
    )


def intent_reason(step: ScalingStep) -> str:
    """The reason of the intent, and of the instances that it stops."""
    if step.wish.number == 0:
        return str(step.wish.reason) if step.wish.reason in (R.IDLE, R.POLICY, R.WAKE_WITHDRAWN) else "asleep"
    return "scaled_down" if step.wish.number < step.number_before else str(step.wish.reason)


def _events(step: ScalingStep) -> list[NewEvent]:
    """Events of a step that applies: a changed number, and the end of a policy's cap."""
    events = [_event(step)] if step.wish.number != step.number_before or step.lifts_policy else []
    cap = step.snapshot.cap
    if step.lifts_cap and cap is not None:
        message = f"the cap of {cap.number} replicas by its policy ends: demand has exceeded it for {cap.window_s:g} s"
        evidence = {
            **step.evidence,
            "deployment": step.snapshot.name,
            "cap": cap.number,
            "policy_window_s": cap.window_s,
        }
        objects = (f"deployment:{step.snapshot.uid}",)
        events.append(NewEvent("policy_cap_lifted", f"{step.snapshot.name}: {message}", objects, evidence, ACTOR))
    return events


def _event(step: ScalingStep) -> NewEvent:
    before, number = step.number_before, step.wish.number
    if step.snapshot.spec.scaling.dry_run:
        reason = "autoscaler_would_scale"
    elif before == 0:
        reason = "woken"
    elif number == 0:
        reason = "wake_withdrawn" if step.wish.reason is R.WAKE_WITHDRAWN else "asleep"
    else:
        reason = "autoscaled"
    evidence = {
        **step.evidence,
        "deployment": step.snapshot.name,
        "old": before,
        "new": number,
        "reason": str(step.wish.reason),
    }
    if step.request_id:
        evidence["request_id"] = step.request_id
    dry_run = "dry run: " if step.snapshot.spec.scaling.dry_run else ""
    message = f"{dry_run}{step.snapshot.name}: {before} -> {number} replicas; {step.wish.message}"
    return NewEvent(reason, message, (f"deployment:{step.snapshot.uid}",), evidence, ACTOR)


async def keep_number(connection: Any, uid: uuid.UUID, before: DeploymentSpec, spec: DeploymentSpec) -> None:
    """Where replicas follow the requests from now on, writes the number that was wanted until now, within the bounds.

    So no busy replica stops because of a new range in its manifest. In the transaction that changes the spec: the
    deployment's row is locked, and the limits of user and policy are still stored.
    """
    if not follows_requests(spec):
        return
    rows = await connection.fetch(_INTENTS_OF, uid)
    intents = [Intent(row["source"], row["max_replicas"], "", min_replicas=row["min_replicas"]) for row in rows]
    number = kept_number(before, spec, intents)
    if number is not None:
        await connection.execute(_NUMBER, uid, number)
