"""Applies of deployments, and of all manifests of one request: one transaction with its events and notifications.

An apply writes only the API's columns; the reconciler derives the rest.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import asyncpg
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from controller.domain.access.grants import Power
from controller.domain.events import NewEvent
from controller.domain.retired_args import retired_args
from controller.domain.spec_changes import Change, change_between
from controller.domain.wanted import scales
from controller.store.access.secrets import problems_of_secrets
from controller.store.core.database import Database, view_of
from controller.store.core.events import CHANNEL, Actor, current_actor, current_role, payloads, write_events
from controller.store.core.refusals import (
    Changed,
    ChangedMeanwhileError,
    GenerationConflictError,
    NotGrantedError,
    RetiredArgsError,
)
from controller.store.deployments.changes import LIVE, clear_limits, record_change
from controller.store.deployments.revisions import apply_again, revision_under_way, write_change, write_revision
from controller.store.deployments.specs import change_names, check_held, names_of, spec_to_json
from controller.store.policies.apply import apply_policy_on, changed_fields, lock_policy
from controller.store.policies.checks import named_policy, problems_of_coverage, problems_of_deployments
from controller.store.policies.webhooks import problems_of_webhook_secrets
from controller.store.scaling.effects import keep_number
from controller.store.views.deployments import deployment_by_uid
from schemas.api.apply import AppliedObject
from schemas.api.deployments import DeploymentView
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.policy import MAX_WINDOW_S, PolicySpec
from schemas.manifest.problems import FieldProblem, ManifestError, join_path

ApplyOutcome = Literal["created", "unchanged", "updated", "replaced"]
Kind = Literal["policy", "deployment"]
Expected = Mapping[Kind, Mapping[str, int]]  # generations by name; 0: it does not exist
# Of two concurrent creations of one name, the second waits for the first, fails on the name, and finds it there. Of two
# deployments that swap aliases at once, one is chosen to fail, and finds what the other did.
retried = retry(
    retry=retry_if_exception_type((asyncpg.UniqueViolationError, asyncpg.DeadlockDetectedError)),
    stop=stop_after_attempt(3),
    reraise=True,
)
# One statement, since transactions that notify commit one after the other.
_CREATE: Final = """
    with wanted as materialized (
        select * from jsonb_to_recordset($1)
               as x (uid uuid, name text, spec jsonb, input_hash text, names jsonb, actor text, request_id text)),
    created as (
        insert into deployments (uid, name, generation, revision, spec)
        select uid, name, 1, 1, spec from wanted order by name),
    revised as (
        insert into revisions (deployment_uid, generation, spec, input_hash, actor, request_id)
        select uid, 1, spec, input_hash, actor, request_id from wanted),
    noted as (
        insert into events (reason, message, evidence, objects, actor, request_id, subjects)
        select 'applied', 'deployment ' || name || ' was created', '{"old_generation": null, "generation": 1}',
               array['deployment:' || uid], actor, request_id,
               jsonb_build_array(jsonb_build_object('kind', 'deployment', 'uid', uid, 'name', name))
          from wanted order by name),
    held as (
        insert into model_names (name, deployment_uid)
        select n.name, w.uid from wanted w, jsonb_array_elements_text(w.names) as n (name) order by n.name
            on conflict do nothing returning name),
    woken as materialized (
        select count(pg_notify($2, payload)) as n from unnest($3::text[]) payload)
    select (select coalesce(array_agg(name), '{}') from held) as held, n from woken"""
# What does not exist has no row to lock: two applies that create the same objects in different orders would each wait
# for the other. So applies of several objects go one after the other.
_ONE_AT_A_TIME: Final = "select pg_advisory_xact_lock(hashtext('gpuward.apply_all'))"
# In the order of locks (`core/locks.py`), each by key.
_LOCK: Final[Mapping[Kind, str]] = {
    "deployment": """select * from deployments where name = any($1) and deleted_at is null order by uid
                      for no key update""",
    "policy": "select name, generation from policies where name = any($1) order by uid for no key update",
}


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


@dataclass(frozen=True, slots=True)
class NewDeployment:
    """A deployment to create. `names`: under which requests ask for it, each with the field that brings it."""

    name: str
    spec: DeploymentSpec
    input_hash: str
    names: Mapping[str, str]
    actor: Actor = field(default_factory=current_actor)
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))


@dataclass(frozen=True, slots=True)
class Document:
    """One manifest of a request.

    Attributes:
        path: in the request.
        name: of the object.
        spec: the engine's checks have passed.
        input_hash: of what the analysis of a deployment reads.
        lacks: what of the spec needs a grant that the caller lacks.
    """

    path: str
    name: str
    spec: DeploymentSpec | PolicySpec
    input_hash: str = ""
    lacks: Sequence[Power] = ()

    @property
    def kind(self) -> Kind:
        """The kind of the object."""
        return "policy" if isinstance(self.spec, PolicySpec) else "deployment"


@retried
async def apply(
    database: Database,
    name: str,
    spec: DeploymentSpec,
    *,
    input_hash: str,
    if_match: int | None = None,
    longest_window_s: float = MAX_WINDOW_S,
    lacks: Sequence[Power] = (),
) -> Applied:
    """Applies `spec` under `name`; a deleted name gets a new uid at once.

    Args:
        database: where.
        name: of the deployment.
        spec: the engine's checks have passed.
        input_hash: of what the spec's analysis reads, stored with a new revision.
        if_match: the present generation must be this one; 0: it must not exist.
        longest_window_s: how long samples are kept, which bounds a policy's window.
        lacks: what of the spec needs a grant that the caller lacks.

    Raises:
        GenerationConflictError: the deployment is at another generation.
        ManifestError: its policy does not exist, or has a window longer than samples are kept.
        NotGrantedError: the caller may not make this change.
    """
    async with database.transaction() as connection:
        await _check(connection, name, spec, longest_window_s)
        row = await connection.fetchrow(LIVE, name)
        found = row["generation"] if row else 0
        if if_match is not None and found != if_match:
            raise GenerationConflictError(name, wanted=if_match, found=found or None, applied=True)
        written = await _apply(connection, name, spec, row, input_hash, lacks)
        return Applied(await deployment_by_uid(connection, written.uid), written.outcome)


async def apply_all(
    connection: Any,
    documents: Sequence[Document],
    expected: Expected,
    *,
    longest_window_s: float,
) -> list[AppliedObject]:
    """Applies policies first, a new default one last, then deployments in their order: all of them, or none.

    Args:
        connection: in a transaction that is `retried`.
        documents: of different objects.
        expected: the generations at which objects must be, also such as no document is of.
        longest_window_s: how long samples are kept, which bounds a policy's window.

    Raises:
        ChangedMeanwhileError: objects are at other generations; names all of them.
        ManifestError: as of a single apply; its paths are those in the request.
        NotGrantedError: as of a single apply.
    """
    if len(documents) > 1:
        await connection.execute(_ONE_AT_A_TIME)
    present = await _lock(connection, documents, expected)
    done: list[AppliedObject] = []
    for one in sorted(documents, key=_order):
        try:
            if isinstance(one.spec, DeploymentSpec):
                await _check(connection, one.name, one.spec, longest_window_s)
                row = present.get(("deployment", one.name))
                written = await _apply(connection, one.name, one.spec, row, one.input_hash, one.lacks)
                done.append(view_of(AppliedObject, written._asdict(), kind="Deployment", name=one.name))
            else:
                done.append(await _apply_policy(connection, one.name, one.spec, longest_window_s))
        except ManifestError as error:
            raise ManifestError([_within(one.path, each) for each in error.problems]) from error
    return done


def _order(document: Document) -> int:
    if isinstance(document.spec, PolicySpec):
        return int(document.spec.default)
    return 2


def _within(path: str, problem: FieldProblem) -> FieldProblem:
    return FieldProblem(join_path(path, problem.path) if problem.path else path, problem.message)


async def _lock(connection: Any, documents: Sequence[Document], expected: Expected) -> dict[tuple[Kind, str], Any]:
    """Locks the objects that exist, and compares their generations; returns their rows."""
    present: dict[tuple[Kind, str], Any] = {}
    changed: list[Changed] = []
    for kind, query in _LOCK.items():
        wanted = expected.get(kind, {})
        names = {one.name for one in documents if one.kind == kind} | wanted.keys()
        rows = await connection.fetch(query, sorted(names)) if names else ()
        present |= {(kind, row["name"]): row for row in rows}
        for name, generation in wanted.items():
            row = present.get((kind, name))
            found = row["generation"] if row else 0
            if found != generation:
                changed.append(Changed(kind, name, generation, found))
    if changed:
        raise ChangedMeanwhileError(changed)
    return present


async def _apply_policy(connection: Any, name: str, spec: PolicySpec, longest_window_s: float) -> AppliedObject:
    outcome = await apply_policy_on(connection, name, spec, if_match=None, longest_window_s=longest_window_s)
    row = await connection.fetchrow("select uid, generation from policies where name = $1", name)
    return view_of(AppliedObject, row, kind="UtilizationPolicy", name=name, outcome=outcome)


async def _apply(
    connection: Any, name: str, spec: DeploymentSpec, row: Any, input_hash: str, lacks: Sequence[Power]
) -> Written:
    """Creates a deployment, or changes the one of the locked row."""
    if row is None:
        refuse_change(name, None, spec, lacks)
        new = NewDeployment(name, spec, input_hash, names_of(name, spec))
        await check_held(connection, new.names, await create_all(connection, [new]))
        return Written(new.uid, 1, "created")
    refuse_change(name, DeploymentSpec.model_validate(row["spec"]), spec, lacks)
    change = await change_spec(connection, row, spec, "applied", input_hash)
    return Written(str(row["uid"]), row["generation"] + (change != "unchanged"), change)


def refuse_change(name: str, old: DeploymentSpec | None, new: DeploymentSpec, lacks: Sequence[Power]) -> None:
    """Refuses a change from `old`, None for a new deployment, to `new`, for missing grants or retired args.

    Only a change that makes a new revision is judged, and then the complete new spec: what is stored continues to run,
    and may be scaled, stopped and started.

    Raises:
        NotGrantedError: names each field that needs a grant that the caller lacks.
        RetiredArgsError: names each arg of an earlier version.
    """
    retired = retired_args(new)
    if not (lacks or retired) or (old is not None and change_between(old, new) != "replaced"):
        return
    if lacks:
        raise NotGrantedError(name, lacks)
    raise RetiredArgsError(name, retired)


async def _check(connection: Any, name: str, spec: DeploymentSpec, longest_window_s: float) -> None:
    """Locks the policy that a spec names, and checks what it refers to."""
    if spec.utilization_policy is not None:
        if (named := named_policy(spec)) is not None:
            await lock_policy(connection, named)
        problems = await problems_of_deployments(connection, {"": spec}, longest_window_s=longest_window_s)
        problems += await problems_of_coverage(connection, deployments={"": (name, spec)}, policies={})
        if problems:
            raise ManifestError(problems)
    await check_secrets(connection, name, spec)


async def check_secrets(connection: Any, name: str, spec: DeploymentSpec) -> None:
    """Checks the secrets of a deployment's environment and of its policy's webhook.

    Raises:
        ManifestError: the caller or the deployment may not have one of them.
    """
    written, role, problems = {"": (name, spec)}, current_role(), []
    if spec.secrets:
        problems += await problems_of_secrets(connection, written, role)
    if spec.utilization_policy is not None:
        problems += await problems_of_webhook_secrets(connection, deployments=written, policies={}, role=role)
    if problems:
        raise ManifestError(problems)


async def create_all(connection: Any, new: Sequence[NewDeployment]) -> list[str]:
    """Writes deployments that do not exist, with their events and notifications; returns the names that they got.

    Raises:
        asyncpg.UniqueViolationError: one of them exists.
    """
    uids, scaled = [one.uid for one in new], [one.uid for one in new if scales(one.spec)]
    rows = [
        {
            "uid": one.uid,
            "name": one.name,
            "spec": spec_to_json(one.spec),
            "input_hash": one.input_hash,
            "names": sorted(one.names),
            "actor": one.actor.name,
            "request_id": one.actor.request_id,
        }
        for one in new
    ]
    row = await connection.fetchrow(_CREATE, rows, CHANNEL, payloads({"deployment": uids, "scaling": scaled}))
    held: list[str] = row["held"]
    return held


async def change_spec(
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
