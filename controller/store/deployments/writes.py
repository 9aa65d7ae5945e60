"""What users want, written: apply, delete, stop, start, scale. Each is one transaction with its event and wake-up.

Writes only the columns that are the API's; what follows from them is the reconciler's.
"""

import uuid
from dataclasses import dataclass
from typing import Any, Final, Literal

import asyncpg
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from controller.domain.events import NewEvent
from controller.engines.registry import engine_for
from controller.scheduling.estimate import input_hash
from controller.store.core.database import Database
from controller.store.core.events import write_events
from controller.store.core.notify import CHANNEL, notify
from controller.store.core.refusals import GenerationConflictError, NotFoundError
from controller.store.policies.checks import named_policy, problems_of_deployments
from controller.store.policies.writes import changed_fields, hold_policy
from controller.store.views.deployments import deployment_by_uid, views_of
from schemas.api.deployments import DeploymentView
from schemas.manifest.deployment import IN_PLACE_FIELDS, DeploymentSpec
from schemas.manifest.policy import MAX_WINDOW_S
from schemas.manifest.problems import ManifestError

ApplyOutcome = Literal["created", "unchanged", "updated", "replaced"]
Change = Literal["unchanged", "updated", "replaced"]
_LIVE: Final = "select * from deployments where name = $1 and deleted_at is null for no key update"
# One statement and so one round trip: its commit follows the time that it writes at once, and what computes for the
# deployment ends by that time's clock.
_DELETE: Final = """
    with gone as (
        update deployments set deleted_at = clock_timestamp()
         where name = $1 and deleted_at is null and generation = coalesce($4, generation) returning *),
    told as (
        insert into events (reason, message, objects)
        select 'deleted', $2, array['deployment:' || uid] from gone)
    select gone.*, pg_notify($3, 'deployment ' || uid) from gone"""


@dataclass(frozen=True, slots=True)
class Applied:
    """What an apply did. `replaced`: a new revision, so instances are replaced; `updated`: changed in place."""

    view: DeploymentView
    outcome: ApplyOutcome


def change_between(old: DeploymentSpec, new: DeploymentSpec) -> Change:
    """What becomes of the instances when `old` becomes `new`."""
    before, after = old.model_dump(mode="json"), new.model_dump(mode="json")
    changed = {field for field in after if after[field] != before[field]}
    if not changed:
        return "unchanged"
    return "updated" if changed <= IN_PLACE_FIELDS else "replaced"


# Two that create the same name at once: the second waits for the first, fails on the name, and finds it there.
@retry(retry=retry_if_exception_type(asyncpg.UniqueViolationError), stop=stop_after_attempt(3), reraise=True)
async def apply(
    database: Database,
    name: str,
    spec: DeploymentSpec,
    *,
    if_match: int | None = None,
    longest_window_s: float = MAX_WINDOW_S,
) -> Applied:
    """Makes `spec` what is wanted under `name`; a deleted name makes a new uid at once.

    Args:
        database: where.
        name: of the deployment.
        spec: what is wanted; the engine's checks have passed.
        if_match: the generation that must be the present one.
        longest_window_s: for how long samples are kept; no policy may look further back.

    Raises:
        GenerationConflictError: if it is not.
        ManifestError: if its policy names what does not exist, or looks further back than samples are kept.
    """
    async with database.transaction() as connection:
        outcome: ApplyOutcome
        await _check_policy(connection, spec, longest_window_s)
        row = await connection.fetchrow(_LIVE, name)
        if if_match is not None and (row is None or row["generation"] != if_match):
            raise GenerationConflictError(name, wanted=if_match, found=row["generation"] if row else None)
        if row is None:
            uid = await _create(connection, name, spec)
            outcome = "created"
        else:
            uid = row["uid"]
            outcome = await _change(connection, row, spec, "applied")
        return Applied(await deployment_by_uid(connection, str(uid)), outcome)


async def scale(database: Database, name: str, replicas: int, *, if_match: int | None = None) -> DeploymentView:
    """Changes the number of replicas, in place.

    Raises:
        NotFoundError: if no live deployment has that name.
        GenerationConflictError: if it is not at generation `if_match`.
    """
    async with database.transaction() as connection:
        row = await _live(connection, name)
        if if_match is not None and row["generation"] != if_match:
            raise GenerationConflictError(name, wanted=if_match, found=row["generation"])
        spec = DeploymentSpec.model_validate({**row["spec"], "replicas": replicas})
        await _change(connection, row, spec, "scaled")
        return await deployment_by_uid(connection, str(row["uid"]))


async def stop(database: Database, name: str) -> DeploymentView:
    """Keeps the deployment at no replicas until it is started or its spec changes.

    Raises:
        NotFoundError: if no live deployment has that name.
    """
    async with database.transaction() as connection:
        row = await _live(connection, name)
        status = await connection.execute(
            """insert into intents (deployment_uid, source, max_replicas, reason) values ($1, 'user', 0, 'stopped')
               on conflict (deployment_uid, source) do update set max_replicas = 0, created_at = now()
               where intents.max_replicas <> 0""",
            row["uid"],
        )
        if status != "INSERT 0 0":
            await _tell(connection, row["uid"], "stopped", f"deployment {name} was stopped by its user")
        return await deployment_by_uid(connection, str(row["uid"]))


async def start(database: Database, name: str) -> DeploymentView:
    """Takes back what `stop` or a policy limited.

    Raises:
        NotFoundError: if no live deployment has that name.
    """
    async with database.transaction() as connection:
        row = await _live(connection, name)
        if await _clear_intents(connection, row["uid"]):
            await _tell(connection, row["uid"], "started", f"deployment {name} was started by its user")
        return await deployment_by_uid(connection, str(row["uid"]))


async def delete(database: Database, name: str, *, if_match: int | None = None) -> DeploymentView:
    """Sets the tombstone; the row goes once everything that ran is confirmed gone. Repeating it changes nothing.

    Raises:
        NotFoundError: if no deployment of that name is left.
        GenerationConflictError: if it is not at generation `if_match`.
    """
    message = f"deployment {name} was deleted by its user"
    async with database.connection() as connection:
        row = await connection.fetchrow(_DELETE, name, message, CHANNEL, if_match)
        if row is None:
            query = (
                "select * from deployments where name = $1 order by deleted_at desc limit 1"  # a live one comes first
            )
            row = await connection.fetchrow(query, name)
        if row is None:
            raise _missing(name)
        if if_match is not None and row["generation"] != if_match:
            raise GenerationConflictError(name, wanted=if_match, found=row["generation"])
        # Of the row as it was: what never started may be finished and gone by now.
        return (await views_of(connection, [row]))[0]


async def _check_policy(connection: Any, spec: DeploymentSpec, longest_window_s: float) -> None:
    named = named_policy(spec)
    if named is not None:
        await hold_policy(connection, named)
    problems = await problems_of_deployments(connection, {"": spec}, longest_window_s=longest_window_s)
    if problems:
        raise ManifestError(problems)


async def _create(connection: Any, name: str, spec: DeploymentSpec) -> uuid.UUID:
    uid = uuid.uuid4()
    await connection.execute(
        "insert into deployments (uid, name, generation, revision, spec) values ($1, $2, 1, 1, $3)",
        uid,
        name,
        spec.model_dump(mode="json"),
    )
    await _write_revision(connection, uid, 1, spec)
    await _tell(connection, uid, "applied", f"deployment {name} was created", old=None, new=1)
    return uid


async def _change(connection: Any, row: Any, spec: DeploymentSpec, reason: str) -> Change:
    """Makes `spec` that of the locked `row`, and takes back what limited the old one."""
    before = DeploymentSpec.model_validate(row["spec"])
    change = change_between(before, spec)
    if change == "unchanged":
        return change
    uid, old = row["uid"], row["generation"]
    new = old + 1
    if change == "replaced":
        await _write_revision(connection, uid, new, spec)
    await connection.execute(
        "update deployments set generation = $2, revision = $3, spec = $4 where uid = $1",
        uid,
        new,
        new if change == "replaced" else row["revision"],
        spec.model_dump(mode="json"),
    )
    await _clear_intents(connection, uid)
    await _tell(connection, uid, reason, f"deployment {row['name']} was {change}", old=old, new=new)
    if before.utilization_policy != spec.utilization_policy:
        await _tell_policy(connection, row, before, spec)
    return change


async def _tell_policy(connection: Any, row: Any, old: DeploymentSpec, new: DeploymentSpec) -> None:
    """That a live deployment has another policy: both values, and of two inline ones what differs."""
    before, after = (spec.model_dump(mode="json")["utilization_policy"] for spec in (old, new))
    evidence: dict[str, Any] = {"old_spec": before, "new_spec": after, "old": before, "new": after}
    if isinstance(before, dict) and isinstance(after, dict):
        evidence["old"], evidence["new"] = changed_fields(before, after)
    message = f"deployment {row['name']} changed its utilization policy: {evidence['old']} -> {evidence['new']}"
    await write_events(connection, [NewEvent("policy_changed", message, (f"deployment:{row['uid']}",), evidence)])


async def _write_revision(connection: Any, uid: uuid.UUID, generation: int, spec: DeploymentSpec) -> None:
    await connection.execute(
        "insert into revisions (deployment_uid, generation, spec, input_hash) values ($1, $2, $3, $4)",
        uid,
        generation,
        spec.model_dump(mode="json"),
        input_hash(spec, engine_for(spec)),
    )


async def _clear_intents(connection: Any, uid: uuid.UUID) -> bool:
    query = "delete from intents where deployment_uid = $1 and source in ('user', 'policy')"
    status: str = await connection.execute(query, uid)
    return status != "DELETE 0"


async def _live(connection: Any, name: str) -> Any:
    row = await connection.fetchrow(_LIVE, name)
    if row is None:
        raise _missing(name)
    return row


def _missing(name: str) -> NotFoundError:
    return NotFoundError(f"no deployment is named {name!r}; `gpuward get deployments` lists those there are")


async def _tell(
    connection: Any, uid: uuid.UUID, reason: str, message: str, *, old: int | None = None, new: int | None = None
) -> None:
    """The event and the wake-up of one change."""
    evidence = {} if new is None else {"old_generation": old, "generation": new}
    await write_events(connection, [NewEvent(reason, message, (f"deployment:{uid}",), evidence)])
    await notify(connection, "deployment", [str(uid)])
