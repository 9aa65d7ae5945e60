"""What an apply of several manifests would lead to: worked out with the scheduler's own code, on arrays, no I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from controller.domain.need_view import need_view
from controller.domain.placement import Ask, Need, Placed, Unplaced
from controller.engines.registry import engine_for
from controller.scheduling.admission.admission import RESERVE_AFTER_S, Decided, Holders, PendingInstance, serve
from controller.scheduling.estimate import asks_for, for_instance
from controller.scheduling.explain.advice import Unfit, advise
from controller.scheduling.inventory.holders import Holder
from controller.scheduling.inventory.inventory import Inventory
from controller.store.placement.plan_reads import Queue
from schemas.api.explain import Explain
from schemas.api.needs import LayoutView
from schemas.api.plan import PlanItem
from schemas.manifest.deployment import DeploymentSpec
from schemas.reasons import Reason

MAX_INSTANCES: Final = 10_000
_MAX_ADVISED: Final = 5  # deployments; each takes about ten questions to the scheduler, who has to leave many more
NOBODY: Final = Holders()
NOBODY_WAITS: Final = Queue()
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


def plan_items(
    inventory: Inventory,
    planned: Sequence[Planned],
    holders: Holders = NOBODY,
    queue: Queue = NOBODY_WAITS,
    *,
    reserve_after_s: float = RESERVE_AFTER_S,
    name_others: bool = True,
) -> list[PlanItem]:
    """Places all of them together behind those who wait, higher priority first; answers in the manifests' order.

    The first that do not fit are told what would make them fit, beside all that do.

    Args:
        inventory: as it is; of no use afterwards.
        planned: what is to be placed.
        holders: those who hold claims, whom the planned might push out.
        queue: those who wait already; of equal priority they are older.
        reserve_after_s: for how long one has to wait until room is kept for it.
        name_others: whether the first that does not fit is told whose leaving would help.
    """
    newest = [PendingInstance(ask, one.spec.priority, one.spec.preempt) for one in planned for ask in asks_of(one)]
    pending_instances = sorted([*queue.waiting, *newest], key=lambda pending: -pending.priority)
    answers = serve(inventory, pending_instances, holders, reserve_after_s=reserve_after_s, ahead=queue.ahead)
    served = {one.decision.instance: one for one in answers}
    names = {worker.id: worker.name for worker in inventory.workers.facts}
    items: list[PlanItem] = []
    advised = 0
    for one in planned:
        advice: list[str] | None = None
        for index in range(one.to_place):
            answer = served.get(_instance(one, index))
            if answer is not None and isinstance(answer.decision, Unplaced) and advice is None:
                staying = holders.staying if name_others and not advised else ()
                advice = _advice(inventory, one, answer.decision, staying) if advised < _MAX_ADVISED else []
                advised += 1
            items.append(_item(one, index, answer, inventory, names, advice or []))
    return items


def _instance(planned: Planned, index: int) -> str:
    return f"{planned.name}#{index}"


def asks_of(planned: Planned) -> list[Ask]:
    """What its instances ask; nothing where the need is not known."""
    if isinstance(planned.need, str):
        return []
    engine = engine_for(planned.spec)
    ask = asks_for(planned.spec, planned.need, engine, instance="", deployment_uid=planned.uid)
    return [for_instance(ask, _instance(planned, n)) for n in range(planned.to_place)]


def _advice(inventory: Inventory, planned: Planned, decision: Unplaced, holders: Sequence[Holder]) -> list[str]:
    if isinstance(planned.need, str) or decision.reason == Reason.RESERVED:
        return []
    engine = engine_for(planned.spec)
    return advise(inventory, Unfit(planned.spec, planned.need, engine, planned.uid, decision.explain, holders))


def _item(
    planned: Planned,
    index: int,
    answer: Decided | None,
    inventory: Inventory,
    names: Mapping[str, str],
    advice: list[str],
) -> PlanItem:
    if answer is None or isinstance(planned.need, str):
        explain = Explain(workers=0, rejected={}, message=f"{Reason.METADATA_UNKNOWN}: {planned.need}")
        return PlanItem(deployment=planned.name, instance=index, fits=False, explain=explain)
    decision = answer.decision
    if not isinstance(decision, Placed):
        return PlanItem(
            deployment=planned.name,
            instance=index,
            fits=False,
            need=need_view(planned.need, planned.spec.resources),
            preempts=[one.instance for one in answer.leave],
            explain=decision.explain.model_copy(update={"advice": advice}),
        )
    gpus = [claim for claim in decision.claims if inventory.gpu_row(claim.device) is not None]
    layout = decision.layout
    return PlanItem(
        deployment=planned.name,
        instance=index,
        fits=True,
        worker=names[decision.worker_id],
        workers=[names[worker] for worker in decision.workers],
        gpus=[claim.device for claim in gpus],
        memory_mib_per_gpu=gpus[0].memory_mib if gpus else None,
        engine=decision.engine or None,
        layout=LayoutView(gpus=layout.gpus, workers=layout.workers, tp=layout.tp, pp=layout.pp, dp=layout.dp),
        need=need_view(planned.need, planned.spec.resources, decision.engine, layout),
    )
