"""What users request of a deployment's spec: apply, scale, undo, delete.

Each is one transaction with its event and notification. It writes only the API's columns; the reconciler derives the
rest.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import asyncpg
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from controller.domain.events import NewEvent
from controller.domain.spec_changes import Change, change_between
from controller.domain.wanted import scales
from controller.store.access.secrets import problems_of_secrets
from controller.store.core.database import Database
from controller.store.core.events import current_actor, current_role, write_events
from controller.store.core.notify import CHANNEL
from controller.store.core.refusals import GenerationConflictError
from controller.store.deployments.changes import clear_limits, record_change
from controller.store.deployments.live import LIVE, live_row, missing
from controller.store.deployments.names import change_names, check_held, names_of
from controller.store.deployments.revisions import (
    apply_again,
    revision_to_undo,
    revision_under_way,
    spec_of_revision,
    write_change,
    write_revision,
)
from controller.store.deployments.specs import spec_to_json
from controller.store.policies.apply import changed_fields, lock_policy
from controller.store.policies.checks import named_policy, problems_of_coverage, problems_of_deployments
from controller.store.policies.webhooks import problems_of_webhook_secrets
from controller.store.scaling.effects import keep_number
from controller.store.views.deployments import deployment_by_uid, views_of
from schemas.api.deployments import DeploymentView
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.parse import parse_spec
from schemas.manifest.policy import MAX_WINDOW_S
from schemas.manifest.problems import ManifestError
from schemas.manifest.scaling import bounds_of

ApplyOutcome = Literal["created", "unchanged", "updated", "replaced"]
Judge = Callable[[str, DeploymentSpec | None, DeploymentSpec], None]
_CREATE: Final = """
    with created as (
        insert into deployments (uid, name, generation, revision, spec) values ($1, $2, 1, 1, $3)),
    revised as (
        insert into revisions (deployment_uid, generation, spec, input_hash, actor, request_id)
        values ($1, 1, $3, $4, $6, $7))
    insert into model_names (name, deployment_uid) select name, $1 from unnest($5::text[]) name
        on conflict do nothing returning name"""
# One statement, so one round trip: the commit follows the written time closely. The delay until the deployment's
# computations have ended is measured from that time.
_DELETE: Final = """
    with gone as (
        update deployments set deleted_at = clock_timestamp()
         where name = $1 and deleted_at is null and generation = coalesce($4, generation) returning *),
    freed as (
        delete from model_names n using gone where n.deployment_uid = gone.uid),
    noted as (
        insert into events (reason, message, objects, actor, request_id, subjects)
        select 'deleted', $2, array['deployment:' || uid], $5, $6,
               event_subjects(array['deployment:' || uid], '{}') from gone)
    select gone.*, pg_notify($3, 'gone ' || uid || '@' || extract(epoch from deleted_at)),
           pg_notify($3, 'deployment ' || uid)
      from gone"""


@dataclass(frozen=True, slots=True)
class Applied:
    """What an apply did. `replaced`: a new revision, so instances are replaced; `updated`: changed in place."""

    view: DeploymentView
    outcome: ApplyOutcome


class Written(NamedTuple):
    """A deployment as an apply left it."""

    uid: str
    generation: int
    outcome: ApplyOutcome


def allow_all(_name: str, _old: DeploymentSpec | None, _new: DeploymentSpec) -> None:
    """Judges that every change may be made."""


# Of two concurrent creations of one name, the second waits for the first, fails on the name, and finds it there. Of two
# deployments that swap aliases at once, one is chosen to fail, and finds what the other did.
@retry(
    retry=retry_if_exception_type((asyncpg.UniqueViolationError, asyncpg.DeadlockDetectedError)),
    stop=stop_after_attempt(3),
    reraise=True,
)
async def apply(
    database: Database,
    name: str,
    spec: DeploymentSpec,
    *,
    input_hash: str,
    if_match: int | None = None,
    longest_window_s: float = MAX_WINDOW_S,
    judge: Judge = allow_all,
) -> Applied:
    """Applies `spec` under `name`; a deleted name gets a new uid at once.

    Args:
        database: where.
        name: of the deployment.
        spec: the engine's checks have passed.
        input_hash: of what the spec's analysis reads, stored with a new revision.
        if_match: the present generation must be this one; 0: it must not exist.
        longest_window_s: how long samples are kept, which bounds a policy's window.
        judge: called with the name, the stored spec and the new one; raises for what the caller may not change.

    Raises:
        GenerationConflictError: the deployment is at another generation.
        ManifestError: its policy does not exist, or has a window longer than samples are kept.
    """
    async with database.transaction() as connection:
        written = await apply_on(
            connection, name, spec, input_hash=input_hash, if_match=if_match, longest_window_s=longest_window_s,
            judge=judge,
        )  # fmt: skip
        return Applied(await deployment_by_uid(connection, written.uid), written.outcome)


async def apply_on(
    connection: Any,
    name: str,
    spec: DeploymentSpec,
    *,
    input_hash: str,
    if_match: int | None,
    longest_window_s: float,
    judge: Judge,
) -> Written:
    """`apply` as a part of a transaction."""
    await _check_policy(connection, name, spec, longest_window_s)
    await _check_secrets(connection, name, spec)
    row = await connection.fetchrow(LIVE, name)
    if if_match is not None and (row["generation"] if row else 0) != if_match:
        raise GenerationConflictError(name, wanted=if_match, found=row["generation"] if row else None, applied=True)
    if row is None:
        judge(name, None, spec)
        return Written(str(await _create(connection, name, spec, input_hash)), 1, "created")
    judge(name, DeploymentSpec.model_validate(row["spec"]), spec)
    change = await _change(connection, row, spec, "applied", input_hash)
    return Written(str(row["uid"]), row["generation"] + (change != "unchanged"), change)


async def scale(
    database: Database, name: str, low: int | None, high: int | None, *, if_match: int | None = None
) -> DeploymentView:
    """Changes the fewest and the most replicas, in place.

    Args:
        database: where.
        name: of the deployment.
        low: the fewest; None: as it is.
        high: the most; None: as it is.
        if_match: the present generation must be this one.

    Raises:
        NotFoundError: no live deployment has this name.
        GenerationConflictError: it is not at generation `if_match`.
        ManifestError: the result is not valid, such as fewer at most than at least.
    """
    async with database.transaction() as connection:
        row = await live_row(connection, name, if_match)
        bounds = bounds_of(row["spec"]["replicas"])
        fewest, most = (bounds[0] if low is None else low), (bounds[1] if high is None else high)
        replicas = fewest if fewest == most else {"min": fewest, "max": most}
        spec = parse_spec({**row["spec"], "replicas": replicas}, name=name)
        await _change(connection, row, spec, "scaled", input_hash="")  # in place: no new revision
        return await deployment_by_uid(connection, str(row["uid"]))


async def undo(
    database: Database, name: str, to: int | None, *, judge: Judge = allow_all, if_match: int | None = None
) -> DeploymentView:
    """Goes back to an older revision. Fields that change in place stay as they are.

    Args:
        database: where.
        name: of the deployment.
        to: number of the revision; None: the one before.
        judge: as in `apply`.
        if_match: the present generation must be this one.

    Raises:
        NotFoundError: no live deployment has this name, or the revision is not kept.
        GenerationConflictError: it is not at generation `if_match`.
        NothingToUndoError: there is no other revision.
        ManifestError: the older revision does not fit the fields that stay.
    """
    async with database.transaction() as connection:
        row = await live_row(connection, name, if_match)
        number, old = await revision_to_undo(connection, row, to)
        present = DeploymentSpec.model_validate(row["spec"])
        spec = parse_spec(spec_of_revision(present, old), name=name)
        judge(name, present, spec)
        await _check_secrets(connection, name, spec)
        await _change(connection, row, spec, "rollout_undone", input_hash="", back_to=number)
        return await deployment_by_uid(connection, str(row["uid"]))


async def delete(database: Database, name: str, *, if_match: int | None = None) -> DeploymentView:
    """Sets the tombstone; the row is removed once all its processes are confirmed dead. Repeating it changes nothing.

    Raises:
        NotFoundError: no deployment has this name.
        GenerationConflictError: it is not at generation `if_match`.
    """
    message = f"deployment {name} was deleted by its user"
    async with database.connection() as connection:
        row = await connection.fetchrow(_DELETE, name, message, CHANNEL, if_match, *current_actor())
        if row is None:
            query = (
                "select * from deployments where name = $1 order by deleted_at desc limit 1"  # a live one comes first
            )
            row = await connection.fetchrow(query, name)
        if row is None:
            raise missing(name)
        if if_match is not None and row["generation"] != if_match:
            raise GenerationConflictError(name, wanted=if_match, found=row["generation"])
        # From the row as it was: a deployment that never started may be finished by now.
        return (await views_of(connection, [row]))[0]


async def _check_policy(connection: Any, name: str, spec: DeploymentSpec, longest_window_s: float) -> None:
    named = named_policy(spec)
    if named is not None:
        await lock_policy(connection, named)
    problems = await problems_of_deployments(connection, {"": spec}, longest_window_s=longest_window_s)
    problems += await problems_of_coverage(connection, deployments={"": (name, spec)}, policies={})
    if problems:
        raise ManifestError(problems)


async def _check_secrets(connection: Any, name: str, spec: DeploymentSpec) -> None:
    written, role = {"": (name, spec)}, current_role()
    problems = await problems_of_secrets(connection, written, role)
    if spec.utilization_policy is not None:
        problems += await problems_of_webhook_secrets(connection, deployments=written, policies={}, role=role)
    if problems:
        raise ManifestError(problems)


async def _create(connection: Any, name: str, spec: DeploymentSpec, input_hash: str) -> uuid.UUID:
    uid, names = uuid.uuid4(), names_of(name, spec)
    stored = spec_to_json(spec)
    held = await connection.fetch(_CREATE, uid, name, stored, input_hash, sorted(names), *current_actor())
    await check_held(connection, names, (row["name"] for row in held))
    await record_change(connection, uid, "applied", f"deployment {name} was created", new=1, scaled=scales(spec))
    return uid


async def _change(
    connection: Any, row: Any, spec: DeploymentSpec, reason: str, input_hash: str, back_to: int | None = None
) -> Change:
    """Writes `spec` to the locked `row`, and removes the limits of the old one.

    A change back to a revision of the rollout that is under way makes no third one. `back_to` names such a revision.
    """
    before = DeploymentSpec.model_validate(row["spec"])
    change = change_between(before, spec)
    if back_to is not None and back_to != row["revision"]:
        change = "replaced"  # an equal spec may run other weights: each revision keeps its commits
    if change == "unchanged":
        return change
    uid, old = row["uid"], row["generation"]
    new = old + 1
    revision = row["revision"]
    await change_names(connection, uid, names_of(row["name"], before), names_of(row["name"], spec))
    if change == "replaced":
        revision = await revision_under_way(connection, uid, revision, spec) if back_to is None else back_to
        if revision is not None:
            await apply_again(connection, uid, revision)
    await write_change(connection, uid, new, revision or new, spec)
    if revision is None:
        await write_revision(connection, uid, new, spec, input_hash)
    await keep_number(connection, uid, before, spec)
    await clear_limits(connection, uid)
    scaled = scales(before) or scales(spec)
    await record_change(
        connection, uid, reason, f"deployment {row['name']} was {change}", old=old, new=new, scaled=scaled
    )
    if before.utilization_policy != spec.utilization_policy:
        await _record_policy_change(connection, row, before, spec)
    return change


async def _record_policy_change(connection: Any, row: Any, old: DeploymentSpec, new: DeploymentSpec) -> None:
    """Writes the event of a changed policy: both values, and the differing fields of two inline ones."""
    before, after = (spec.model_dump(mode="json")["utilization_policy"] for spec in (old, new))
    evidence: dict[str, Any] = {"old_spec": before, "new_spec": after, "old": before, "new": after}
    if isinstance(before, dict) and isinstance(after, dict):
        evidence["old"], evidence["new"] = changed_fields(before, after)
    message = f"deployment {row['name']} changed its utilization policy: {evidence['old']} -> {evidence['new']}"
    await write_events(connection, [NewEvent("policy_changed", message, (f"deployment:{row['uid']}",), evidence)])
