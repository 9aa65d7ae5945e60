"""`POST /plan/drain`: the instances that a drain of workers would stop, move and leave, with their new workers."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from aiohttp import web

from controller.api.body import json_response, read_model
from controller.api.dry_run.allowances import PASSES
from controller.api.dry_run.kept_inventory import KEPT_INVENTORY
from controller.api.route import Access, Route
from controller.decide.instances.gang import is_finished
from controller.decide.instances.relocate import drained_now, starts_elsewhere, until_drained_s
from controller.decide.policies.texts import duration_text
from controller.domain.instances import DeploymentSnapshot, InstanceState
from controller.domain.phases import InstancePhase
from controller.domain.placement import Ask, Unplaced
from controller.domain.workers import Drain, drain_of
from controller.engines.registry import engine_for
from controller.scheduling.estimate import asks_for
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.place import place
from controller.store.deployments.observe import observe
from controller.store.workers.maintenance import drain_in, live_workers
from controller.store.workers.phases import deployments_on
from schemas.api.requests import DrainPlanBody
from schemas.api.workers import DrainPlanView, DrainStepView

_LEAVING: Final = frozenset({InstancePhase.STOPPING, InstancePhase.REPLACED})


@dataclass(frozen=True, slots=True)
class _Step:
    """One instance on a drained worker. `ask`: its need elsewhere; None: it has none, or that is unknown."""

    snapshot: DeploymentSnapshot
    instance: InstanceState
    ask: Ask | None

    @property
    def order(self) -> tuple[int, float, str]:
        return -self.snapshot.spec.priority, self.instance.created_at.timestamp(), self.instance.id


async def post(request: web.Request) -> web.Response:
    body = await read_model(request, DrainPlanBody)
    async with request.app[KEPT_INVENTORY].snapshot() as snapshot:
        connection = snapshot.connection
        rows = await live_workers(connection, dict.fromkeys(body.workers))
        drains = {str(row["id"]): drain_of(body, row["read_at"], drain_in(row)) for row in rows}
        observed = await observe(connection, sorted(await deployments_on(connection, list(drains))))
    steps = sorted(
        (step for snapshot in observed.values() for step in _steps(snapshot, drains)), key=lambda step: step.order
    )
    return json_response(await request.app[PASSES].run(_plan, snapshot.cache.inventory, steps, frozenset(drains)))


def _steps(snapshot: DeploymentSnapshot, drains: Mapping[str, Drain]) -> Iterator[_Step]:
    """A deployment's instances on these workers, as the next step would observe them."""
    hosts = {
        id_: replace(host, draining=True, drain_until=drain.until, drain_restarts_tasks=drain.restarts_tasks)
        if (drain := drains.get(id_)) is not None
        else host
        for id_, host in snapshot.hosts.items()
    }
    drained = replace(snapshot, hosts=hosts)
    for instance in snapshot.instances:
        drained_workers = drains.keys() & {claim.worker_id for claim in instance.claims}
        if drained_workers and instance.phase not in _LEAVING and not is_finished(snapshot, instance):
            yield _Step(drained, instance, _ask(drained, instance))


def _ask(snapshot: DeploymentSnapshot, instance: InstanceState) -> Ask | None:
    revision = snapshot.revisions[instance.revision]
    if revision.need is None or not starts_elsewhere(snapshot, instance):
        return None
    spec = revision.spec
    return asks_for(spec, revision.need, engine_for(spec), instance=instance.id, deployment_uid=snapshot.uid)


def _plan(inventory: Inventory, steps: Sequence[_Step], drained: Collection[str]) -> DrainPlanView:
    workers = [worker for worker in inventory.workers.entries if worker.id in drained]
    inventory.upsert_workers([replace(worker, schedulable=False) for worker in workers])
    names = {worker.id: worker.name for worker in inventory.workers.entries}
    decided = iter(place(inventory, [step.ask for step in steps if step.ask is not None]))
    items = []
    for step in steps:
        decision = next(decided) if step.ask is not None else None
        to = [] if decision is None or isinstance(decision, Unplaced) else [names[w] for w in decision.workers]
        why = decision.explain.message if isinstance(decision, Unplaced) else ""
        present = dict.fromkeys(claim.worker_id for claim in step.instance.claims)
        items.append(_view(step, [names.get(w, w) for w in present], to, why))
    return DrainPlanView(items=items)


def _view(step: _Step, workers: list[str], to: list[str], why: str) -> DrainStepView:
    snapshot, instance = step.snapshot, step.instance
    fits = None if step.ask is None else bool(to)
    after = duration_text(round(until_drained_s(snapshot, instance.id)))
    nowhere = f"; fits nowhere now: {why}" if why else ""
    task = snapshot.revisions[instance.revision].spec.restart == "never"
    action: Literal["moves", "stops", "stays"]
    if drained_now(snapshot, instance) is not None:
        action, message = "stops", "stops at once, and starts elsewhere where there is a place"
        if task:
            message = "stops at once, and starts elsewhere from its beginning (restart: never)"
    elif not task:
        action, message = "moves", f"its replacement starts first, or it stops after {after}"
    elif step.ask is None:
        action, message = "stays", "runs until it ends (restart: never)"
    else:
        action, message = "stays", f"runs until it ends; after {after} it stops and starts elsewhere from its beginning"
    return DrainStepView(
        instance=instance.id, deployment=snapshot.name, workers=workers, action=action, to_workers=to, fits=fits,
        message=message + nowhere,
    )  # fmt: skip


ROUTES: Final = (
    Route(
        "POST", "/api/v1/plan/drain", post, Access.OPERATE,
        "Show what a drain of workers would stop, move and leave", "workers", DrainPlanView, DrainPlanBody,
    ),
)  # fmt: skip
