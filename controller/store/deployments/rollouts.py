"""Rollouts as rows: written with a deployment's step, paused and resumed by users, counted by gateways."""

import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Final

import orjson

from controller.domain.events import NewEvent
from controller.domain.rollouts import RevisionCount, RolloutRecord
from controller.store.core.database import Database
from controller.store.core.events import notify, write_events
from controller.store.core.guards import DeploymentStep, expect_rows
from controller.store.core.refusals import NotRollingError
from controller.store.deployments.changes import live_row
from schemas.manifest.deployment import DeploymentSpec

_GUARD: Final = """
    select d.uid from deployments d left join rollouts r on r.deployment_uid = d.uid
      join unnest($1::uuid[], $2::int[]) as x (uid, asked) on x.uid = d.uid
     where coalesce(r.asked, 0) = x.asked"""
_WRITE: Final = """
    insert into rollouts as r (deployment_uid, revision, stable, state, attempt, seen, reason, message, trying_since,
                               canary_since, progressed, holds, weight, updated, available, kept)
    select x.* from jsonb_to_recordset($1)
           as x (uid uuid, revision bigint, stable bigint, state text, attempt int, seen int, reason text, message text,
                 trying_since timestamptz, canary_since timestamptz, progressed int, holds boolean, weight int,
                 updated int, available int, kept int)
     order by x.uid
    on conflict (deployment_uid) do update
       set since = case when (r.state, r.revision, r.attempt) is not distinct from
                             (excluded.state, excluded.revision, excluded.attempt)
                        then r.since else clock_timestamp() end,
           revision = excluded.revision, stable = excluded.stable, state = excluded.state,
           attempt = excluded.attempt, seen = excluded.seen, reason = excluded.reason, message = excluded.message,
           trying_since = excluded.trying_since, canary_since = excluded.canary_since,
           progressed = excluded.progressed, holds = excluded.holds, weight = excluded.weight,
           updated = excluded.updated, available = excluded.available, kept = excluded.kept"""
_SET_PAUSED: Final = """
    insert into rollouts as r (deployment_uid, paused, asked) values ($1, $2, 1)
    on conflict (deployment_uid) do update set paused = excluded.paused, asked = r.asked + 1
     where r.paused <> excluded.paused or not excluded.paused and r.state in ('failed', 'aborted')
    returning asked"""
_REPORT: Final = """
    insert into gateway_outcomes as o (gateway_id, deployment_uid, revision, attempt, requests, errors)
    select $1, x.uid, x.revision, x.attempt, x.requests, x.errors
      from unnest($2::uuid[], $3::bigint[], $4::int[], $5::bigint[], $6::bigint[])
           as x (uid, revision, attempt, requests, errors)
     where exists (select 1 from gateways where id = $1)
     order by x.uid, x.revision
    on conflict (gateway_id, deployment_uid, revision) do update
       set attempt = excluded.attempt, requests = excluded.requests, errors = excluded.errors"""


async def write_rollouts(connection: Any, steps: Iterable[DeploymentStep]) -> None:
    """Writes the records of these steps. Their deployments are locked, so no user changes them.

    Raises:
        StaleError: a user has paused or resumed a rollout since it was read.
    """
    changed = [(s.snapshot, record) for s in steps if (record := s.effects.rollout) is not None]
    if changed:
        asked = [f.rollout.asked if f.rollout is not None else 0 for f, _ in changed]
        await expect_rows(connection, _GUARD, len(changed), [f.uid for f, _ in changed], asked)
        await connection.execute(_WRITE, [_to_json(snapshot.uid, record) for snapshot, record in changed])
    gone = [s.snapshot.uid for s in steps if s.effects.forget_rollout]
    if gone:
        await connection.execute("delete from rollouts where deployment_uid = any($1::uuid[])", gone)


def _to_json(uid: str, record: RolloutRecord) -> dict[str, Any]:
    plain: dict[str, Any] = orjson.loads(orjson.dumps(record))
    return {"uid": uid, **plain}


async def pause(database: Database, name: str, *, if_match: int | None = None) -> None:
    """Halts the rollout of a deployment, present and future ones, until it is resumed. Repeating it changes nothing."""
    await _set_paused(database, name, if_match, paused=True)


async def resume(database: Database, name: str, *, if_match: int | None = None) -> None:
    """Continues a paused rollout, and tries a failed or aborted rollout once more."""
    await _set_paused(database, name, if_match, paused=False)


async def _set_paused(database: Database, name: str, if_match: int | None, *, paused: bool) -> None:
    """Raises NotFoundError, GenerationConflictError, or NotRollingError without `update: rolling`."""
    async with database.transaction() as connection:
        row = await live_row(connection, name, if_match)
        if DeploymentSpec.model_validate(row["spec"]).update != "rolling":
            raise NotRollingError(
                f"deployment {name!r} has update: recreate, which replaces one instance after the other; "
                "apply it with update: rolling to pause and resume rollouts"
            )
        uid = row["uid"]
        if await connection.fetchval(_SET_PAUSED, uid, paused) is None:
            return
        reason = "rollout_paused" if paused else "rollout_resumed"
        message = f"the rollout of deployment {name} was {'paused' if paused else 'resumed'} by its user"
        await write_events(connection, [NewEvent(reason, message, (f"deployment:{uid}",))])
        await notify(connection, "deployment", [str(uid)])


async def report_outcomes(connection: Any, gateway: uuid.UUID, counts: Sequence[RevisionCount]) -> None:
    """Writes the counts of a gateway, each the total of its attempt."""
    await connection.execute(
        _REPORT,
        gateway,
        [uuid.UUID(c.uid) for c in counts],
        [c.revision for c in counts],
        [c.attempt for c in counts],
        [c.requests for c in counts],
        [c.errors for c in counts],
    )
