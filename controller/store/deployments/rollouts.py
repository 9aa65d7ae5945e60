"""Stored rollouts: read with a deployment, written with its step, paused and resumed by users."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import orjson

from controller.domain.events import NewEvent
from controller.domain.rollouts import RequestOutcomes, RolloutFacts, RolloutRecord, RolloutState
from controller.store.core.database import Database, Reader, Row
from controller.store.core.events import notify, write_events
from controller.store.core.guards import DeploymentStep, expect_rows
from controller.store.core.refusals import NotRollingError
from controller.store.deployments.changes import live_row
from schemas.manifest.deployment import DeploymentSpec

_SILENT_S: Final = 10.0  # a gateway that has not reported for this long is silent
_OUTCOMES: Final = """
    select o.deployment_uid, sum(o.requests)::bigint as requests, sum(o.errors)::bigint as errors
      from gateway_outcomes o
      join rollouts r on r.deployment_uid = o.deployment_uid and r.revision = o.revision and r.attempt = o.attempt
     where o.deployment_uid = any($1::uuid[]) group by 1"""
_SILENT: Final = """
    select name from gateways where seen_at < clock_timestamp() - make_interval(secs => $1) order by name limit 20"""
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
_ASK: Final = """
    insert into rollouts as r (deployment_uid, paused, asked) values ($1, $2, 1)
    on conflict (deployment_uid) do update set paused = excluded.paused, asked = r.asked + 1
     where r.paused <> excluded.paused or not excluded.paused and r.state in ('failed', 'aborted')
    returning asked"""


async def read_rollouts(connection: Reader, stored: Mapping[Any, Mapping[str, Any]]) -> dict[Any, RolloutFacts]:
    """Rollouts from their rows as JSON, by deployment, with gateways' counts while a rollout is in progress."""
    under_way = [uid for uid, row in stored.items() if row["state"] in ("canary", "progressing")]
    counted: Mapping[Any, Row] = {}
    silent: tuple[str, ...] = ()
    if under_way:
        counted = {row["deployment_uid"]: row for row in await connection.fetch(_OUTCOMES, under_way)}
        silent = tuple(row["name"] for row in await connection.fetch(_SILENT, _SILENT_S))
    return {uid: _facts(row, counted.get(uid), silent) for uid, row in stored.items()}


def _facts(row: Mapping[str, Any], counted: Row | None, silent: tuple[str, ...]) -> RolloutFacts:
    requests, errors = (counted["requests"], counted["errors"]) if counted is not None else (0, 0)
    return RolloutFacts(
        None if row["revision"] is None else record_of(row),
        row["paused"],
        row["asked"],
        RequestOutcomes(requests, errors, silent),
    )


def record_of(row: Mapping[str, Any]) -> RolloutRecord:
    """The record in a row as JSON."""
    return RolloutRecord(
        revision=row["revision"],
        stable=row["stable"],
        state=RolloutState(row["state"]),
        attempt=row["attempt"],
        seen=row["seen"],
        reason=row["reason"],
        message=row["message"],
        trying_since=_moment(row["trying_since"]),
        canary_since=_moment(row["canary_since"]),
        progressed=row["progressed"],
        holds=row["holds"],
        weight=row["weight"],
        updated=row["updated"],
        available=row["available"],
        kept=row["kept"],
    )


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


async def write_rollouts(connection: Any, steps: Iterable[DeploymentStep]) -> None:
    """Writes the records of these steps. Their deployments are locked, so no user changes them.

    Raises:
        StaleError: a user has paused or resumed a rollout since it was read.
    """
    changed = [(s.facts, record) for s in steps if (record := s.effects.rollout) is not None]
    if changed:
        asked = [f.rollout.asked if f.rollout is not None else 0 for f, _ in changed]
        await expect_rows(connection, _GUARD, len(changed), [f.uid for f, _ in changed], asked)
        await connection.execute(_WRITE, [_to_json(facts.uid, record) for facts, record in changed])
    gone = [s.facts.uid for s in steps if s.effects.forget_rollout]
    if gone:
        await connection.execute("delete from rollouts where deployment_uid = any($1::uuid[])", gone)


def _to_json(uid: str, record: RolloutRecord) -> dict[str, Any]:
    plain: dict[str, Any] = orjson.loads(orjson.dumps(record))
    return {"uid": uid, **plain}


async def pause(database: Database, name: str, *, if_match: int | None = None) -> None:
    """Halts the rollout of a deployment, present and future ones, until it is resumed. Repeating it changes nothing.

    Raises:
        NotFoundError: no live deployment has this name.
        GenerationConflictError: it is not at generation `if_match`.
        NotRollingError: it does not have `update: rolling`.
    """
    await _ask(database, name, if_match, paused=True)


async def resume(database: Database, name: str, *, if_match: int | None = None) -> None:
    """Continues a paused rollout, and tries a failed or aborted rollout once more.

    Raises:
        NotFoundError: no live deployment has this name.
        GenerationConflictError: it is not at generation `if_match`.
        NotRollingError: it does not have `update: rolling`.
    """
    await _ask(database, name, if_match, paused=False)


async def _ask(database: Database, name: str, if_match: int | None, *, paused: bool) -> None:
    async with database.transaction() as connection:
        row = await live_row(connection, name, if_match)
        if DeploymentSpec.model_validate(row["spec"]).update != "rolling":
            raise NotRollingError(
                f"deployment {name!r} has update: recreate, which replaces one instance after the other; "
                "apply it with update: rolling to pause and resume rollouts"
            )
        uid = row["uid"]
        if await connection.fetchval(_ASK, uid, paused) is None:
            return
        reason = "rollout_paused" if paused else "rollout_resumed"
        message = f"the rollout of deployment {name} was {'paused' if paused else 'resumed'} by its user"
        await write_events(connection, [NewEvent(reason, message, (f"deployment:{uid}",))])
        await notify(connection, "deployment", [str(uid)])
