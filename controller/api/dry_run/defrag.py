"""`POST /defrag`: finds running instances to relocate so that others fit; `apply` relocates them, a few at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from aiohttp import web

from controller.api.apply import validate_all
from controller.api.body import json_response, read_model
from controller.api.context import CONTEXT
from controller.api.dry_run.allowances import PASSES, caller_of_dry_run
from controller.api.dry_run.effects import asks_of
from controller.api.dry_run.kept_inventory import KEPT_INVENTORY
from controller.api.dry_run.manifests import ManifestEffect, effects_of
from controller.api.route import Access, Route
from controller.domain.admission import Holder, PendingInstance
from controller.domain.placement import Ask, Placed
from controller.engines.registry import engine_for
from controller.scheduling.admission.consolidate import Consolidation, Movable, consolidate
from controller.scheduling.estimate import asks_for
from controller.scheduling.inventory.capacity import Inventory
from controller.store.deployments.relocations import NewRelocation, check_none_in_progress, request_relocations
from controller.store.placement.pass_reads import read_holders
from controller.store.placement.plan_reads import (
    DemandRow,
    MovableRow,
    read_demands,
    read_movable,
    read_relocations,
)
from schemas.api.defrag import DefragView, MoveView, RelocationsView
from schemas.api.requests import MAX_DEMANDS, DefragBody
from schemas.manifest.deployment import DeploymentManifest, DeploymentSpec
from schemas.manifest.parse import parse_manifest_objects
from schemas.manifest.problems import FieldProblem, ManifestError, join_path


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The computed plan, with names of workers by id."""

    plan: Consolidation
    movable: dict[str, MovableRow]
    names: dict[str, str]
    gpus: frozenset[str]


async def post(request: web.Request) -> web.Response:
    context = request.app[CONTEXT]
    body = await read_model(request, DefragBody)
    specs = _deployments(body)
    effects: list[ManifestEffect] = []
    if specs:
        caller = caller_of_dry_run(request)
        async with caller.analysing:
            effects = await effects_of(context.database, specs, caller)
    async with request.app[KEPT_INVENTORY].snapshot() as snapshot:
        connection, cache = snapshot.connection, snapshot.cache
        await check_none_in_progress(connection)
        movable, demands = await read_movable(connection), await read_demands(connection, MAX_DEMANDS)
        leaving = (await read_holders(connection, cache.holdings)).leaving
    outcome = await request.app[PASSES].run(
        _consolidate, cache.inventory, effects, demands, movable, leaving, body.any_priority
    )
    view = _view(outcome, effects)
    if body.apply and outcome.plan.relocations:
        await request_relocations(context.database, _relocations(outcome))
        view = msgspec.structs.replace(view, applied=True)
    return json_response(view)


def _deployments(body: DefragBody) -> dict[str, DeploymentSpec]:
    if not body.manifests:
        return {}
    written: dict[str, DeploymentSpec] = {}
    specs: dict[str, DeploymentSpec] = {}
    for number, manifest in enumerate(parse_manifest_objects(list(body.manifests))):
        path = join_path("manifests", number)
        if not isinstance(manifest, DeploymentManifest):
            raise ManifestError([FieldProblem(path, "must be a deployment")])
        written[path] = specs[manifest.name] = manifest.spec()
    validate_all(written)
    return specs


def _consolidate(
    inventory: Inventory,
    effects: Sequence[ManifestEffect],
    demands: Sequence[DemandRow],
    movable: Sequence[MovableRow],
    leaving: Sequence[Holder],
    any_priority: bool,
) -> _Outcome:
    stated = {effect.uid for effect in effects}
    wanted = [(_ask(row), row.priority) for row in demands if row.deployment_uid not in stated]
    wanted += [(ask, effect.spec.priority) for effect in effects for ask in asks_of(effect)]
    priorities = None if any_priority else {ask.instance: priority for ask, priority in wanted}
    promised = {
        row.instance: PendingInstance(_ask(row)).bound_for(row.promised)
        for row in demands
        if row.promised is not None and row.deployment_uid not in stated
    }
    may_move = [row for row in movable if row.deployment_uid not in stated]
    copies = [Movable(row.instance, row.workers, row.claims, _ask(row), row.priority) for row in may_move]
    asks = [ask for ask, _ in wanted]
    plan = consolidate(inventory, asks, copies, leaving=leaving, priorities=priorities, promised=promised)
    names = {worker.id: worker.name for worker in inventory.workers.entries}
    return _Outcome(plan, {row.instance: row for row in may_move}, names, frozenset(inventory.gpus.uuid))


def _ask(row: DemandRow | MovableRow) -> Ask:
    return asks_for(row.spec, row.need, engine_for(row.spec), instance=row.instance, deployment_uid=row.deployment_uid)


def _view(outcome: _Outcome, effects: Sequence[ManifestEffect]) -> DefragView:
    moves = []
    for move in outcome.plan.relocations:
        row = outcome.movable[move.instance]
        moves.append(
            MoveView(
                instance=row.instance,
                deployment=row.deployment,
                workers=[outcome.names[worker] for worker in row.workers],
                to_workers=[outcome.names[worker] for worker in move.to.workers],
                to_gpus=[c.device for c in move.to.claims if c.device in outcome.gpus],
                memory_mib=sum(c.memory_mib for c in row.claims if c.device in outcome.gpus),
            )
        )
    unknown = [effect.name for effect in effects if isinstance(effect.need, str) and effect.to_place]
    return DefragView(
        moves=moves, fits=[placed.instance for placed in outcome.plan.placed], left=[*outcome.plan.unplaced, *unknown]
    )


def _relocations(outcome: _Outcome) -> list[NewRelocation]:
    demand = ", ".join(placed.instance for placed in outcome.plan.placed)
    targets = {placed.instance: _target(outcome, placed) for placed in outcome.plan.placed}
    relocations = []
    for move in outcome.plan.relocations:
        row, (workers, gpus) = outcome.movable[move.instance], _target(outcome, move.to)
        relocations.append(NewRelocation(move.instance, row.deployment_uid, row.epoch, workers, gpus, demand, targets))
    return relocations


def _target(outcome: _Outcome, placed: Placed) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the workers and UUIDs of the GPUs of a placement."""
    workers = tuple(outcome.names[worker] for worker in placed.workers)
    return workers, tuple(c.device for c in placed.claims if c.device in outcome.gpus)


async def get(request: web.Request) -> web.Response:
    async with request.app[CONTEXT].database.snapshot() as connection:
        return json_response(RelocationsView(items=await read_relocations(connection)))


ROUTES: Final = (
    Route("GET", "/api/v1/defrag", get, Access.READ, "List the latest relocations", "defrag", RelocationsView),
    Route(
        "POST", "/api/v1/defrag", post, Access.OPERATE,
        "Relocate instances so that others fit; a dry run without apply", "defrag", DefragView, DefragBody,
    ),
)  # fmt: skip
