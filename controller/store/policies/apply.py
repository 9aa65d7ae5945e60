"""Apply and delete utilization policies, each in one transaction with its event and its notification.

The apply of a deployment that refers to a policy locks the policy FOR KEY SHARE, so neither misses the other.
"""

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import asyncpg
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from controller.domain.events import NewEvent
from controller.store.core.database import Database
from controller.store.core.events import current_role, notify_all, write_events
from controller.store.core.refusals import GenerationConflictError, InUseError
from controller.store.deployments.specs import policy_to_json
from controller.store.policies.checks import problem_of_second_default, problems_of_coverage, problems_of_policies
from controller.store.policies.effective import EFFECTIVE
from controller.store.policies.webhooks import problems_of_webhook_secrets
from controller.store.views.policies import missing_policy, policy_by_name, policy_spec
from schemas.api.policies import PolicyView
from schemas.manifest.policy import MAX_WINDOW_S, PolicySpec
from schemas.manifest.problems import ManifestError

PolicyOutcome = Literal["created", "updated", "unchanged"]
_OBJECTS_MAX: Final = 200  # of an event; deployments beyond it show the effect in their own later events
_NAMES_SHOWN: Final = 5
_AFFECTED: Final = f"""
    select d.uid from ({EFFECTIVE}) e join deployments d on d.uid = e.deployment_uid and d.deleted_at is null
     where e.policy_uid = $1 order by d.uid"""  # noqa: S608 - a constant, no input
_NAMED_BY: Final = """
    select name, count(*) over () as n from deployments
     where deleted_at is null and spec ->> 'utilization_policy' = $1 order by name limit $2"""


@dataclass(frozen=True, slots=True)
class AppliedPolicy:
    """The result of an apply."""

    view: PolicyView
    outcome: PolicyOutcome


# Of two concurrent creations of a name or a default, the second fails on the index, and finds the first.
@retry(retry=retry_if_exception_type(asyncpg.UniqueViolationError), stop=stop_after_attempt(3), reraise=True)
async def apply_policy(
    database: Database,
    name: str,
    spec: PolicySpec,
    *,
    if_match: int | None = None,
    longest_window_s: float = MAX_WINDOW_S,
) -> AppliedPolicy:
    """Creates or changes the policy `name`.

    `if_match`: required present generation; 0: the policy must not exist. `longest_window_s`: retention of samples.

    Raises:
        GenerationConflictError: the policy is at another generation.
        ManifestError: it would be a second default, its window is too long, its `min_coverage` too small, or its
            signing secret does not exist, or is not for the deployments of its reports.
    """

    async def check(connection: Any) -> None:
        await _check(connection, name, spec, longest_window_s)

    async with database.transaction_or_refusal(check) as connection:
        outcome = await apply_policy_on(connection, name, spec, if_match=if_match, longest_window_s=longest_window_s)
        return AppliedPolicy(await policy_by_name(connection, name), outcome)


async def apply_policy_on(
    connection: Any, name: str, spec: PolicySpec, *, if_match: int | None, longest_window_s: float
) -> PolicyOutcome:
    """As `apply_policy`, in an open transaction."""
    row = await connection.fetchrow("select * from policies where name = $1 for no key update", name)
    _check_generation(name, row, if_match, applied=True)
    old = None if row is None else policy_spec(row)
    outcome: PolicyOutcome = "unchanged" if old == spec else "created" if old is None else "updated"
    await _check(connection, name, spec, longest_window_s)
    if outcome != "unchanged":
        await _write(connection, name, row, spec)
    return outcome


async def delete_policy(database: Database, name: str, *, if_match: int | None = None) -> PolicyView:
    """Deletes a policy. Deployments to which it applied as the default then have no policy.

    Raises:
        NotFoundError: no policy has this name.
        GenerationConflictError: it is not at generation `if_match`.
        InUseError: deployments refer to it by name.
    """
    async with database.transaction() as connection:
        row = await connection.fetchrow("select * from policies where name = $1 for update", name)
        if row is None:
            raise missing_policy(name)
        _check_generation(name, row, if_match)
        # Read after the lock: earlier references are committed by then.
        users = await connection.fetch(_NAMED_BY, name, _NAMES_SHOWN)
        if users:
            raise _in_use(name, [user["name"] for user in users], users[0]["n"])
        view = await policy_by_name(connection, name)
        affected = await _affected(connection, row["uid"])
        await connection.execute("delete from policies where uid = $1", row["uid"])
        evidence = {"old_spec": _written(policy_spec(row)), "old_generation": row["generation"]}
        await _record(connection, row["uid"], "policy_deleted", f"policy {name} was deleted", affected, evidence)
        return view


async def lock_policy(connection: Any, name: str) -> None:
    """Keeps a policy, if it exists, from being deleted until the transaction ends."""
    await connection.execute("select 1 from policies where name = $1 for key share", name)


def changed_fields(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the old and the new values of the fields in which two policies differ."""
    fields = [field for field in {**old, **new} if old.get(field) != new.get(field)]
    return {f: old[f] for f in fields if f in old}, {f: new[f] for f in fields if f in new}


async def _check(connection: Any, name: str, spec: PolicySpec, longest_window_s: float) -> None:
    problems = await problems_of_policies(connection, {"": spec}, longest_window_s=longest_window_s)
    written = {"": (name, spec)}
    problems += await problems_of_coverage(connection, deployments={}, policies=written)
    problems += await problems_of_webhook_secrets(connection, deployments={}, policies=written, role=current_role())
    if spec.default:
        present = await connection.fetchval("select name from policies where is_default and name <> $1", name)
        problems += [] if present is None else [problem_of_second_default("", present)]
    if problems:
        raise ManifestError(problems)


async def _write(connection: Any, name: str, row: Any, spec: PolicySpec) -> None:
    """Writes a new policy, or a new spec of the locked `row`; notifies its deployments."""
    uid = uuid.uuid4() if row is None else row["uid"]
    generation = 1 if row is None else row["generation"] + 1
    before = [] if row is None else await _affected(connection, uid)
    await connection.execute(
        """insert into policies (uid, name, generation, spec, is_default) values ($1, $2, $3, $4, $5)
           on conflict (uid) do update
              set generation = excluded.generation, spec = excluded.spec, is_default = excluded.is_default""",
        uid,
        name,
        generation,
        policy_to_json(spec),
        spec.default,
    )
    affected = sorted({*before, *await _affected(connection, uid)})
    evidence: dict[str, Any] = {"generation": generation, "new_spec": _written(spec)}
    if row is None:
        await _record(connection, uid, "policy_created", f"policy {name} was created", affected, evidence)
        return
    old_spec = _written(policy_spec(row))
    old, new = changed_fields(old_spec, _written(spec))
    evidence |= {"old": old, "new": new, "old_generation": row["generation"], "old_spec": old_spec}
    changes = ", ".join(f"{field} {old[field]} -> {new[field]}" for field in new)
    await _record(connection, uid, "policy_changed", f"policy {name} was changed: {changes}", affected, evidence)


async def _affected(connection: Any, uid: uuid.UUID) -> list[str]:
    return [str(row["uid"]) for row in await connection.fetch(_AFFECTED, uid)]


async def _record(
    connection: Any, uid: uuid.UUID, reason: str, message: str, affected: Collection[str], evidence: Mapping[str, Any]
) -> None:
    objects = (f"policy:{uid}", *(f"deployment:{deployment}" for deployment in list(affected)[:_OBJECTS_MAX]))
    event = NewEvent(reason, message, objects, {**evidence, "deployments": len(affected)})
    await write_events(connection, [event])
    await notify_all(connection, {"deployment": affected, "policy": [str(uid)]})


def _written(spec: PolicySpec) -> dict[str, Any]:
    return spec.model_dump(mode="json")


def _check_generation(name: str, row: Any, wanted: int | None, *, applied: bool = False) -> None:
    present = None if row is None else row["generation"]
    if wanted is not None and (present or 0) != wanted:
        raise GenerationConflictError(name, wanted=wanted, present=present, kind="policy", applied=applied)


def _in_use(name: str, users: list[str], count: int) -> InUseError:
    more = f" and {count - len(users)} more" if count > len(users) else ""
    return InUseError(
        f"policy {name!r} is named by {', '.join(users)}{more}; change their utilization_policy, or delete them, first"
    )
