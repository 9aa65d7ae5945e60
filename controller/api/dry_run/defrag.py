"""`POST /defrag`: which running instances to move so that others fit; with `apply` they are moved, a few at a time."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from controller.api.context import CONTEXT
from controller.api.dry_run.placements import Planned, asks_of
from controller.api.dry_run.plan import ANALYSES_AT_ONCE, observe_manifests, validate_all
from controller.api.exchange import answer, read_model
from controller.api.route import Access, Route
from controller.domain.placement import Ask, Placed
from controller.engines.registry import engine_for
from controller.scheduling.admission.consolidate import Consolidation, Movable, consolidate
from controller.scheduling.estimate import asks_for
from controller.scheduling.inventory.holders import Holder
from controller.scheduling.inventory.inventory import Inventory
from controller.store.deployments.relocations import NewRelocation, ask_for, check_none_under_way
from controller.store.placement.holders import read_holders
from controller.store.placement.inventory import read_inventory
from controller.store.placement.movable import (
    DemandRow,
    MovableRow,
    read_demands,
    read_movable,
    read_relocations,
)
from schemas.api.defrag import MAX_DEMANDS, DefragBody, DefragView, MoveView, RelocationsView, RelocationView
from schemas.manifest.deployment import DeploymentManifest
from schemas.manifest.parse import parse_manifest_objects
from schemas.manifest.problems import FieldProblem, ManifestError, join_path


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What was worked out, with names of workers as people know them."""

    plan: Consolidation
    movable: dict[str, MovableRow]
    names: dict[str, str]
    gpus: frozenset[str]


async def post(request: web.Request) -> web.Response:
    """`POST /defrag`."""
    context = request.app[CONTEXT]
    body = await read_model(request, DefragBody)
    manifests = _deployments(body)
    planned: list[Planned] = []
    if manifests:
        async with request.app[ANALYSES_AT_ONCE]:
            planned = await observe_manifests(context, manifests)
    async with context.database.snapshot() as connection:
        await check_none_under_way(connection)
        seen = await read_inventory(connection)
        movable, demands = await read_movable(connection), await read_demands(connection, MAX_DEMANDS)
        leaving = (await read_holders(connection, seen.holdings)).leaving
    outcome = await asyncio.to_thread(_work_out, seen.inventory, planned, demands, movable, leaving)
    view = _view(outcome, planned)
    if body.apply and outcome.plan.moves:
        await ask_for(context.database, _relocations(outcome))
        view = view.model_copy(update={"applied": True})
    return answer(view)


def _deployments(body: DefragBody) -> list[DeploymentManifest]:
    if not body.manifests:
        return []
    written: dict[str, DeploymentManifest] = {}
    for number, one in enumerate(parse_manifest_objects(list(body.manifests))):
        path = join_path("manifests", number)
        if not isinstance(one, DeploymentManifest):
            raise ManifestError([FieldProblem(path, "is no deployment; room is made for deployments only")])
        written[path] = one
    validate_all(written)
    return list(written.values())


def _work_out(
    inventory: Inventory,
    planned: Sequence[Planned],
    demands: Sequence[DemandRow],
    movable: Sequence[MovableRow],
    leaving: Sequence[Holder],
) -> _Outcome:
    stated = {one.uid for one in planned}
    asks = [_ask(row) for row in demands if row.deployment_uid not in stated]
    asks += [ask for one in planned for ask in asks_of(one)]
    may_move = [row for row in movable if row.deployment_uid not in stated]
    copies = [Movable(row.instance, row.workers, row.claims, _ask(row)) for row in may_move]
    plan = consolidate(inventory, asks, copies, leaving=leaving)
    names = {worker.id: worker.name for worker in inventory.workers.facts}
    return _Outcome(plan, {row.instance: row for row in may_move}, names, frozenset(inventory.gpus.uuid))


def _ask(row: DemandRow | MovableRow) -> Ask:
    return asks_for(row.spec, row.need, engine_for(row.spec), instance=row.instance, deployment_uid=row.deployment_uid)


def _view(outcome: _Outcome, planned: Sequence[Planned]) -> DefragView:
    moves = []
    for move in outcome.plan.moves:
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
    unknown = [one.name for one in planned if isinstance(one.need, str) and one.to_place]
    return DefragView(
        moves=moves, fits=[placed.instance for placed in outcome.plan.fits], left=[*outcome.plan.left, *unknown]
    )


def _relocations(outcome: _Outcome) -> list[NewRelocation]:
    demand = ", ".join(placed.instance for placed in outcome.plan.fits)
    rooms = {placed.instance: _place(outcome, placed) for placed in outcome.plan.fits}
    found = []
    for move in outcome.plan.moves:
        row, (workers, gpus) = outcome.movable[move.instance], _place(outcome, move.to)
        found.append(NewRelocation(move.instance, row.deployment_uid, row.epoch, workers, gpus, demand, rooms))
    return found


def _place(outcome: _Outcome, placed: Placed) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of workers, and UUIDs of GPUs."""
    workers = tuple(outcome.names[worker] for worker in placed.workers)
    return workers, tuple(c.device for c in placed.claims if c.device in outcome.gpus)


async def get(request: web.Request) -> web.Response:
    """`GET /defrag`."""
    async with request.app[CONTEXT].database.snapshot() as connection:
        rows = await read_relocations(connection)
    items = [
        RelocationView(
            instance=row.instance,
            deployment=row.deployment,
            to_workers=list(row.to),
            to_gpus=list(row.gpus),
            demand=row.demand,
            state=row.state,
            copy_name=row.copy,
            message=row.message,
            created_at=row.created_at,
            ended_at=row.ended_at,
        )
        for row in rows
    ]
    return answer(RelocationsView(items=items))


ROUTES: Final = (
    Route("GET", "/api/v1/defrag", get, Access.READ, "The latest moves of instances", "defrag", RelocationsView),
    Route(
        "POST", "/api/v1/defrag", post, Access.OPERATE,
        "Which instances to move so that others fit; with apply they are moved", "defrag", DefragView, DefragBody,
    ),
)  # fmt: skip
