"""`POST /plan`: what an apply would do. Validates as an apply does, reads, places in memory, writes nothing."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from aiohttp import web

from controller.api.context import CONTEXT, ApiContext
from controller.api.dry_run.placements import MAX_INSTANCES, NOBODY, PlanChange, Planned, plan_items
from controller.api.dry_run.policies import policy_outlook
from controller.api.errors import as_api_error, invalid
from controller.api.exchange import answer, read_model
from controller.api.route import Access, Route
from controller.domain.placement import Need
from controller.engines.base import SpecError
from controller.engines.registry import engine_for, validate
from controller.runtime.child import ChildError, ChildFailure
from controller.scheduling.admission.admission import may_have_room
from controller.scheduling.estimate import input_hash
from controller.store.deployments.writes import change_between
from controller.store.placement.holders import read_holders
from controller.store.placement.inventory import read_inventory
from controller.store.placement.plan_reads import known_needs, placed_counts, read_queue
from controller.store.views.deployments import live_by_name
from schemas.api.deployments import DeploymentView
from schemas.api.plan import PlanView
from schemas.api.requests import PlanBody
from schemas.manifest.deployment import DeploymentManifest, DeploymentSpec
from schemas.manifest.parse import parse_manifest_objects
from schemas.manifest.problems import FieldProblem, join_path

ANALYSES_LIMIT_S: Final = 25.0  # of one plan
_ANALYSIS_LIMIT_S: Final = 15.0  # of one deployment's, so that one that hangs leaves time for others
FEW: Final = 10  # manifests, of which the first that does not fit is told whose leaving would help: that takes longest
MAX_ANALYSES_AT_ONCE: Final = 2  # plans have no part in the controller's own analyses, and must not crowd them out
ANALYSES_AT_ONCE: Final = web.AppKey("ANALYSES_AT_ONCE", asyncio.Semaphore)
_CHANGES: Final[dict[str, PlanChange]] = {"unchanged": "unchanged", "updated": "update", "replaced": "replace"}


async def post(request: web.Request) -> web.Response:
    """`POST /plan`."""
    context = request.app[CONTEXT]
    body = await read_model(request, PlanBody)
    parsed = parse_manifest_objects(list(body.manifests))
    written = {join_path("", n) if len(parsed) > 1 else "": manifest for n, manifest in enumerate(parsed)}
    deployments = {path: one for path, one in written.items() if isinstance(one, DeploymentManifest)}
    validate_all(deployments)
    async with context.database.snapshot() as connection:
        policies = await policy_outlook(connection, written, longest_window_s=context.longest_window_s)
    if policies.problems:
        raise invalid(policies.problems)
    manifests = list(deployments.values())
    async with request.app[ANALYSES_AT_ONCE]:
        planned = await observe_manifests(context, manifests)
    replaced = [one.uid for one in planned if one.change == "replace"]
    async with context.database.snapshot() as connection:
        # Old instances make room for the new ones, so what they hold counts as free.
        seen = await read_inventory(connection, without=replaced)
        queue = await read_queue(connection, without=[one.uid for one in planned])
        needed = len(planned) <= FEW or any(one.spec.preempt for one in planned)
        needed |= any(may_have_room(one, context.reserve_after_s) for one in queue.waiting)
        holders = await read_holders(connection, seen.holdings, without=replaced) if needed else NOBODY
    items = await asyncio.to_thread(
        plan_items, seen.inventory, planned, holders, queue,
        reserve_after_s=context.reserve_after_s, name_others=len(planned) <= FEW,
    )  # fmt: skip
    changes = {one.name: one.change for one in planned}
    view = PlanView(
        items=items, changes=changes, policy_changes=dict(policies.changes), policies=dict(policies.effective)
    )
    return answer(view)


def validate_all(manifests: Mapping[str, DeploymentManifest]) -> None:
    """Checks what each would run on, given by the path at which each was written."""
    problems: list[FieldProblem] = []
    for path, manifest in manifests.items():
        try:
            validate(manifest.spec())
        except SpecError as error:
            if not path:
                raise
            known = as_api_error(error)
            problems.extend(
                FieldProblem(join_path(path, problem["path"]), problem["message"])
                for problem in (known.details["problems"] if known else ())
            )
    if problems:
        raise invalid(problems)


async def observe_manifests(context: ApiContext, manifests: Sequence[DeploymentManifest]) -> list[Planned]:
    """What would become of each, with its need: known, or worked out here."""
    specs = {manifest.name: manifest.spec() for manifest in manifests}
    hashes = {name: input_hash(spec, engine_for(spec)) for name, spec in specs.items()}
    async with context.database.snapshot() as connection:
        live = await live_by_name(connection, specs)
        placed = await placed_counts(connection, [view.uid for view in live.values()])
        needs = await known_needs(connection, hashes.values())
    planned: list[Planned] = []
    ends = asyncio.get_running_loop().time() + ANALYSES_LIMIT_S
    for name, spec in specs.items():
        view = live.get(name)
        change = _change(view, spec)
        to_place = _to_place(view, spec, change, placed.get(view.uid, 0) if view else 0)
        need: Need | str = ""
        if to_place:
            need = await _need(context, spec, needs.get(hashes[name]), ends)
            if isinstance(need, Need):
                needs[hashes[name]] = need
        planned.append(Planned(name, view.uid if view else f"new {name}", spec, change, to_place, need))
    total = sum(one.to_place for one in planned)
    if total > MAX_INSTANCES:
        fix = f"{total} instances together; plan at most {MAX_INSTANCES} at once"
        raise invalid([FieldProblem("replicas", fix)])
    return planned


def _change(view: DeploymentView | None, spec: DeploymentSpec) -> PlanChange:
    return "create" if view is None else _CHANGES[change_between(view.spec, spec)]


def _to_place(view: DeploymentView | None, spec: DeploymentSpec, change: PlanChange, placed: int) -> int:
    """Instances for which room would have to be found."""
    if view is None or change == "replace":
        return spec.replicas
    wanted = view.status.wanted if change == "unchanged" else spec.replicas
    return max(0, wanted - placed)


async def _need(context: ApiContext, spec: DeploymentSpec, known: Need | None, ends: float) -> Need | str:
    """The need, or why it is not known. `ends`: by the loop's clock, when the analyses of this plan have to."""
    engine = engine_for(spec)
    if engine.analysis(spec) is None:
        return engine.need(spec, None)
    if known is not None:
        return known
    try:
        async with asyncio.timeout_at(min(ends, asyncio.get_running_loop().time() + _ANALYSIS_LIMIT_S)):
            return await context.analyse(spec)
    except TimeoutError:
        return "its model was not read in the time that a plan has; an apply goes on reading"
    except ChildFailure as error:
        return error.message if isinstance(error, ChildError) else str(error)


ROUTES: Final = (
    Route(
        "POST", "/api/v1/plan", post, Access.OPERATE, "What an apply would do; nothing is written", "plan", PlanView,
        PlanBody,
    ),
)  # fmt: skip
