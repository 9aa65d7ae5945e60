"""Applies of a deployment, and of all manifests of a request: one transaction with its events and notifications.

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
from controller.domain.spec_changes import Change, change_between
from controller.domain.wanted import scales
from controller.store.access.secrets import problems_of_secrets
from controller.store.core.database import Database, Reader, view_of
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
from controller.store.deployments.specs import change_names, check_held, names_of, problems_of_names, spec_to_json
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
# Of two concurrent creations of a name, the second waits for the first, fails on the name, and finds it in its next
# attempt. If two deployments swap aliases at the same time, the database fails one of them.
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
# New objects have no row to lock: two applies that create the same objects in different orders would deadlock. So
# applies of several objects are serialized.
_ONE_AT_A_TIME: Final = "select pg_advisory_xact_lock(hashtext('gpuward.apply_all'))"
# In the order of locks (`core/guards.py`).
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
    """A deployment after its apply."""

    uid: str
    generation: int
    outcome: ApplyOutcome


@dataclass(frozen=True, slots=True)
class NewDeployment:
    """A deployment to create. `names`: its model names, each with the field of the spec that has it."""

    name: str
    spec: DeploymentSpec
    input_hash: str
    names: Mapping[str, str]
    actor: Actor = field(default_factory=current_actor)
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))


@dataclass(frozen=True, slots=True)
class Document:
    """One manifest of a request; the engine's checks have passed."""

    path: str  # in the request
    name: str
    spec: DeploymentSpec | PolicySpec
    input_hash: str = ""  # identifies the input of a deployment's analysis
    lacks: Sequence[Power] = ()  # for which the caller lacks grants

    @property
    def kind(self) -> Kind:
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
        database: the ledger.
        name: the deployment's name.
        spec: the engine's checks have passed.
        input_hash: identifies the input of the spec's analysis; stored with a new revision.
        if_match: the expected generation; 0: the deployment must not exist.
        longest_window_s: how long samples are kept, which bounds a policy's window.
        lacks: powers that the spec gives, and for which the caller lacks grants.

    Raises:
        GenerationConflictError: the deployment is at another generation.
        ManifestError: its policy does not exist, or has a window longer than samples are kept.
        NotGrantedError: the caller may not make this change.
    """

    async def check(connection: Any) -> None:
        await _check(connection, name, spec, longest_window_s)
        if problems := await problems_of_names(connection, {"": (name, spec)}):
            raise ManifestError(problems)
        await refuse_changes(connection, [Document("", name, spec, lacks=lacks)])

    async with database.transaction_or_refusal(check) as connection:
        await _lock_policy(connection, spec)
        await _check(connection, name, spec, longest_window_s)
        row = await connection.fetchrow(LIVE, name)
        generation = row["generation"] if row else None
        if if_match is not None and (generation or 0) != if_match:
            raise GenerationConflictError(name, wanted=if_match, present=generation, applied=True)
        written = await _apply(connection, name, spec, row, input_hash, lacks)
        return Applied(await deployment_by_uid(connection, written.uid), written.outcome)


async def apply_all(
    connection: Any,
    documents: Sequence[Document],
    expected: Expected,
    *,
    longest_window_s: float,
) -> list[AppliedObject]:
    """Applies all objects or none: policies first, then deployments, both in the order of the request.

    So deployments may name a policy of the same request. The default policy comes after the other policies, since one
    of these may cease to be the default.

    Args:
        connection: a transaction that is `retried`.
        documents: manifests, each of another object.
        expected: the expected generations, also of objects without a document.
        longest_window_s: how long samples are kept, which bounds a policy's window.

    Raises:
        ChangedMeanwhileError: objects are at other generations; names all of them.
        ManifestError: a policy or secret that a manifest needs may not be used, or a name is taken; with paths in the
            request.
        NotGrantedError: the caller lacks a grant for a change.
    """
    if len(documents) > 1:
        await connection.execute(_ONE_AT_A_TIME)
    present = await _lock(connection, documents, expected)
    done: list[AppliedObject] = []
    for document in sorted(documents, key=_order):
        name, spec = document.name, document.spec
        try:
            if isinstance(spec, DeploymentSpec):
                await _lock_policy(connection, spec)
                await _check(connection, name, spec, longest_window_s)
                row = present.get(("deployment", name))
                written = await _apply(connection, name, spec, row, document.input_hash, document.lacks)
                done.append(view_of(AppliedObject, written._asdict(), kind="Deployment", name=name))
            else:
                done.append(await _apply_policy(connection, name, spec, longest_window_s))
        except ManifestError as error:
            raise ManifestError([_within(document.path, problem) for problem in error.problems]) from error
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
        names = {document.name for document in documents if document.kind == kind} | wanted.keys()
        rows = await connection.fetch(query, sorted(names)) if names else ()
        present |= {(kind, row["name"]): row for row in rows}
        for name, generation in wanted.items():
            row = present.get((kind, name))
            stored = row["generation"] if row else 0
            if stored != generation:
                changed.append(Changed(kind, name, generation, stored))
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
    """Creates a deployment, or changes that of the locked row."""
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

    Only a change that makes a new revision is judged, and then the complete new spec: a stored deployment continues to
    run, and may be scaled, stopped and started.

    Raises:
        NotGrantedError: names each field that needs a grant that the caller lacks.
        RetiredArgsError: names each arg of an earlier version.
    """
    retired = new.retired_args
    if not (lacks or retired) or (old is not None and change_between(old, new) != "replaced"):
        return
    if lacks:
        raise NotGrantedError(name, lacks)
    raise RetiredArgsError(name, retired)


async def refuse_changes(connection: Reader, documents: Sequence[Document]) -> None:
    """`refuse_change` for each deployment as it is now, without a lock."""
    specs = {d.name: (d.spec, d.lacks) for d in documents if isinstance(d.spec, DeploymentSpec)}
    judged = {name: new for name, new in specs.items() if new[1] or new[0].retired_args}
    query = "select name, spec from deployments where name = any($1) and deleted_at is null"
    rows = await connection.fetch(query, list(judged)) if judged else []
    present = {row["name"]: DeploymentSpec.model_validate(row["spec"]) for row in rows}
    for name, (spec, lacks) in judged.items():
        refuse_change(name, present.get(name), spec, lacks)


async def _lock_policy(connection: Any, spec: DeploymentSpec) -> None:
    if spec.utilization_policy is not None and (named := named_policy(spec)) is not None:
        await lock_policy(connection, named)


async def _check(connection: Any, name: str, spec: DeploymentSpec, longest_window_s: float) -> None:
    """Checks the objects to which a spec refers."""
    if spec.utilization_policy is not None:
        problems = await problems_of_deployments(connection, {"": spec}, longest_window_s=longest_window_s)
        problems += await problems_of_coverage(connection, deployments={"": (name, spec)}, policies={})
        if problems:
            raise ManifestError(problems)
    await check_secrets(connection, name, spec)


async def check_secrets(connection: Any, name: str, spec: DeploymentSpec) -> None:
    """Checks the secrets of a deployment's environment and of its policy's webhook.

    Raises:
        ManifestError: the caller or the deployment may not have a secret.
    """
    written, role, problems = {"": (name, spec)}, current_role(), []
    if spec.secrets:
        problems += await problems_of_secrets(connection, written, role)
    if spec.utilization_policy is not None:
        problems += await problems_of_webhook_secrets(connection, deployments=written, policies={}, role=role)
    if problems:
        raise ManifestError(problems)


async def create_all(connection: Any, new: Sequence[NewDeployment]) -> list[str]:
    """Writes new deployments, with their events and notifications; returns the model names that they got.

    Raises:
        asyncpg.UniqueViolationError: a deployment exists.
    """
    uids, scaled = [d.uid for d in new], [d.uid for d in new if scales(d.spec)]
    rows = [
        {
            "uid": d.uid,
            "name": d.name,
            "spec": spec_to_json(d.spec),
            "input_hash": d.input_hash,
            "names": sorted(d.names),
            "actor": d.actor.name,
            "request_id": d.actor.request_id,
        }
        for d in new
    ]
    row = await connection.fetchrow(_CREATE, rows, CHANNEL, payloads({"deployment": uids, "scaling": scaled}))
    held: list[str] = row["held"]
    return held


async def change_spec(
    connection: Any, row: Any, spec: DeploymentSpec, reason: str, input_hash: str, back_to: int | None = None
) -> Change:
    """Writes `spec` to the locked `row`, and removes the limits of the old spec.

    A change back to a revision of the present rollout makes no new revision. `back_to` names such a revision.
    """
    before = DeploymentSpec.model_validate(row["spec"])
    change = change_between(before, spec)
    if back_to is not None and back_to != row["revision"]:
        change = "replaced"  # although the spec may be equal: each revision keeps its own commits of models
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
    """Writes the event of a changed policy: both values, and the differing fields of two inline policies."""
    before, after = (spec.model_dump(mode="json")["utilization_policy"] for spec in (old, new))
    evidence: dict[str, Any] = {"old_spec": before, "new_spec": after, "old": before, "new": after}
    if isinstance(before, dict) and isinstance(after, dict):
        evidence["old"], evidence["new"] = changed_fields(before, after)
    message = f"deployment {row['name']} changed its utilization policy: {evidence['old']} -> {evidence['new']}"
    await write_events(connection, [NewEvent("policy_changed", message, (f"deployment:{row['uid']}",), evidence)])
