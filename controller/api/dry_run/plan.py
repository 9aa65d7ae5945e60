"""`POST /plan`: shows what an apply would do. It runs an apply's checks, places in memory, and writes nothing."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from aiohttp import web

from controller.api.apply import Documents, check_documents, read_documents
from controller.api.body import AS_WRITTEN, json_response, parse_model, read_body
from controller.api.context import CONTEXT, ApiContext
from controller.api.dry_run.allowances import DryRunCaller, caller_of_dry_run
from controller.api.dry_run.candidates import candidates_of, watch_for
from controller.api.dry_run.effects import plan_items
from controller.api.dry_run.kept_inventory import KEPT_INVENTORY
from controller.api.dry_run.manifests import ManifestEffect, effects_of
from controller.api.dry_run.policy_effects import PolicyEffects, policy_effects
from controller.api.dry_run.policy_stops import policy_stops
from controller.api.dry_run.queue import read_queue, read_successors
from controller.api.dry_run.rehearsal import Present
from controller.api.dry_run.rollouts import planned_rollouts, read_deployments
from controller.api.errors import invalid
from controller.api.route import Access, Route
from controller.domain.access.redaction import Redaction
from controller.leader.start_checks import check_specs
from controller.scheduling.admission.admit import ReserveTimes, may_reserve
from controller.store.placement.pass_reads import read_holders
from controller.store.placement.plan_reads import Absences, read_absences
from schemas.api.plan import PlanCandidates, PlanItem, PlanView, PolicyStops
from schemas.api.policies import PlannedPolicy
from schemas.api.requests import PlanBody, PolicyPlanBody
from schemas.api.view import from_plain, to_plain
from schemas.manifest.problems import FieldProblem

MAX_WITH_BLOCKERS: Final = 10  # manifests; beyond it the slowest advice, naming blocking instances, is left out
MAX_WITH_CANDIDATES: Final = 5  # deployments; each answer has an entry for every GPU


async def post(request: web.Request) -> web.Response:
    caller = caller_of_dry_run(request)
    body = await read_body(request, caller.body_bytes)  # first, so that slow senders do not count as computing
    with caller.computing:
        view = await _plan(request.app, parse_model(body, PlanBody), caller)
    if not caller.knows_secrets:
        request[AS_WRITTEN] = True
        redaction = request.app[CONTEXT].known_secrets.redaction()
        view = _without_stored_values(view, redaction)
    return json_response(view)


async def post_policies(request: web.Request) -> web.Response:
    """`POST /plan/policies`: the part of a plan that reads no models and places nothing."""
    caller = caller_of_dry_run(request)
    body = await read_body(request, caller.body_bytes)
    with caller.computing:
        documents = _documents(parse_model(body, PolicyPlanBody).manifests, caller)
        context = request.app[CONTEXT]
        policies, _ = await _checked(context, documents, caller)
        return json_response(await policy_stops(context.database, documents, policies, caller))


def _documents(manifests: Sequence[dict[str, Any]], caller: DryRunCaller) -> Documents:
    if len(manifests) > caller.manifests:
        fix = f"must be at most {caller.manifests} with a key of the role viewer, got {len(manifests)}"
        raise invalid([FieldProblem("manifests", f"{fix}; plan fewer at a time, or use a key of the role operator")])
    return read_documents(manifests)


async def _checked(context: ApiContext, documents: Documents, caller: DryRunCaller) -> tuple[PolicyEffects, list[str]]:
    """Runs an apply's checks; returns the effect on policies, and the warnings."""
    async with context.database.snapshot() as connection:
        warnings = await check_documents(
            connection,
            documents,
            longest_window_s=context.longest_window_s,
            known=context.known_secrets.redaction() if caller.knows_secrets else None,
            keys=context.secret_keys,
            granted=caller.granted,
        )
        policies = await policy_effects(
            connection, dict(documents.deployments.values()), dict(documents.policies.values())
        )
    return policies, warnings


async def _plan(app: web.Application, body: PlanBody, caller: DryRunCaller) -> PlanView:
    context = app[CONTEXT]
    documents = _documents(body.manifests, caller)
    specs = dict(documents.deployments.values())
    if body.candidates and len(specs) > MAX_WITH_CANDIDATES:
        fix = f"must be with at most {MAX_WITH_CANDIDATES} deployments, got {len(specs)}"
        raise invalid([FieldProblem("candidates", fix)])
    policies, warnings = await _checked(context, documents, caller)
    stops = await policy_stops(context.database, documents, policies, caller)
    async with caller.analysing:
        effects = await effects_of(context.database, specs, caller, every_need=body.candidates)
    replaced = [effect.uid for effect in effects if effect.change == "replace"]
    name_blockers = len(effects) <= MAX_WITH_BLOCKERS and not body.candidates
    async with app[KEPT_INVENTORY].snapshot() as snapshot:
        connection, cache = snapshot.connection, snapshot.cache
        queue = await read_queue(connection, without=replaced, keys=context.secret_keys)
        deployments = await read_deployments(connection, effects)
        preempts = any(effect.spec.preempt for effect in effects) or any(pending.preempt for pending in queue.waiting)
        needed = name_blockers or preempts or bool(deployments)
        needed |= any(may_reserve(pending, context.reserve.after_s) for pending in queue.waiting)
        holders = await read_holders(connection, cache.holdings, only_leaving=not needed)
        successors = await read_successors(connection, holders, cache.holdings) if preempts else {}
        absences = await read_absences(connection) if body.candidates else None
        no_preemption: dict[str, str] = {}
        if caller.knows_secrets:
            no_preemption = await check_specs(connection, specs, context.secret_keys)
    unable = {effect.uid: no_preemption[effect.name] for effect in effects if effect.name in no_preemption}
    present = Present(cache.inventory, cache.holdings, holders, queue, deployments, successors, unable)
    items, candidates = await caller.passes.run(
        _rehearse, present, effects, absences, reserve=context.reserve, name_blockers=name_blockers
    )
    changes = {effect.name: effect.change for effect in effects}
    return PlanView(
        items=items, changes=changes, policy_changes=dict(policies.changes), warnings=warnings,
        policies=dict(policies.effective), rollouts=planned_rollouts(deployments, effects),
        field_changes={effect.name: list(effect.fields) for effect in effects if effect.fields},
        replaces={effect.name: effect.replaces for effect in effects if effect.replaces},
        generations={effect.name: effect.generation or 0 for effect in effects},
        policy_generations=dict(policies.generations),
        candidates=candidates,
        policy_stops=stops,
    )  # fmt: skip


def _without_stored_values(view: PlanView, redaction: Redaction) -> PlanView:
    """The plan with everything redacted that its caller has not written: old values, and stored policies."""
    changes = {
        name: [msgspec.structs.replace(field, old=redaction.value(field.old, written=True)) for field in fields]
        for name, fields in view.field_changes.items()
    }
    policies = {
        name: policy
        if policy.origin == "inline" or policy.name in view.policy_changes
        else from_plain(PlannedPolicy, redaction.value(to_plain(policy)))
        for name, policy in view.policies.items()
    }
    return msgspec.structs.replace(view, field_changes=changes, policies=policies)


def _rehearse(
    present: Present,
    effects: Sequence[ManifestEffect],
    absences: Absences | None,
    *,
    reserve: ReserveTimes,
    name_blockers: bool,
) -> tuple[list[PlanItem], dict[str, PlanCandidates]]:
    """The outcome of the instances, and the selectable GPUs if `absences` are given."""
    watch = None if absences is None else watch_for(effects)
    items = plan_items(present, effects, reserve=reserve, name_blockers=name_blockers, watch=watch)
    if watch is None or absences is None:
        return items, {}
    return items, candidates_of(watch, present.inventory, effects, absences)


ROUTES: Final = (
    Route(
        "POST", "/api/v1/plan", post, Access.READ, "Show what an apply would do; writes nothing", "plan", PlanView,
        PlanBody,
    ),
    Route(
        "POST", "/api/v1/plan/policies", post_policies, Access.READ,
        "Show what policies would stop at once because of an apply; writes nothing", "plan", PolicyStops,
        PolicyPlanBody,
    ),
)  # fmt: skip
