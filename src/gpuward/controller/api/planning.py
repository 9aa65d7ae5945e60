"""What an apply of several manifests would lead to: worked out with the scheduler's own code, on arrays, no I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gpuward.controller.domain.placement import Ask, Decision, Need, Placed
from gpuward.controller.engines.registry import engine_for
from gpuward.controller.scheduling.estimate import asks_for
from gpuward.controller.scheduling.inventory import Inventory
from gpuward.controller.scheduling.place import place
from gpuward.schemas.manifest import DeploymentSpec
from gpuward.schemas.objects import Explain, PlanItem
from gpuward.schemas.reasons import Reason

MAX_INSTANCES: Final = 10_000
PlanChange = Literal["create", "replace", "update", "unchanged"]


@dataclass(frozen=True, slots=True)
class Planned:
    """One manifest: what would become of its deployment, and how many instances would have to be placed."""

    name: str
    uid: str
    spec: DeploymentSpec
    change: PlanChange
    to_place: int
    need: Need | str  # a text: why the need is not known


def plan_items(inventory: Inventory, planned: Sequence[Planned]) -> list[PlanItem]:
    """Places all of them together, higher priority first, and answers in the manifests' order."""
    order = sorted(range(len(planned)), key=lambda n: -planned[n].spec.priority)
    asks = [ask for n in order for ask in _asks(planned[n])]
    decisions = {decision.instance: decision for decision in place(inventory, asks)}
    names = {worker.id: worker.name for worker in inventory.workers.facts}
    items: list[PlanItem] = []
    for one in planned:
        for index in range(one.to_place):
            decision = decisions.get(_instance(one, index))
            items.append(_unknown(one, index) if decision is None else _item(one, index, decision, inventory, names))
    return items


def _instance(planned: Planned, index: int) -> str:
    return f"{planned.name}#{index}"


def _asks(planned: Planned) -> list[Ask]:
    if isinstance(planned.need, str):
        return []
    engine = engine_for(planned.spec)
    return [
        asks_for(planned.spec, planned.need, engine, instance=_instance(planned, n), deployment_uid=planned.uid)
        for n in range(planned.to_place)
    ]


def _item(planned: Planned, index: int, decision: Decision, inventory: Inventory, names: Mapping[str, str]) -> PlanItem:
    if not isinstance(decision, Placed):
        return PlanItem(deployment=planned.name, instance=index, fits=False, explain=decision.explain)
    gpus = [claim for claim in decision.claims if inventory.gpu_row(claim.device) is not None]
    return PlanItem(
        deployment=planned.name,
        instance=index,
        fits=True,
        worker=names[decision.worker_id],
        workers=[names[worker] for worker in decision.workers],
        gpus=[claim.device for claim in gpus],
        memory_mib_per_gpu=gpus[0].memory_mib if gpus else None,
    )


def _unknown(planned: Planned, index: int) -> PlanItem:
    explain = Explain(workers=0, rejected={}, message=f"{Reason.METADATA_UNKNOWN}: {planned.need}")
    return PlanItem(deployment=planned.name, instance=index, fits=False, explain=explain)
