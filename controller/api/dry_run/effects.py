"""Places the instances that manifests would create, in memory and with the scheduler's own code. No I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from controller.api.dry_run.queue import Queue
from controller.domain.holdings import Holder, Holders
from controller.domain.need_view import need_view
from controller.domain.pending import PendingInstance
from controller.domain.placement import Ask, Need, Placed, Unplaced
from controller.engines.registry import engine_for
from controller.scheduling.admission.admit import DEFAULT_RESERVE, AdmissionDecision, ReserveTimes, admit
from controller.scheduling.estimate import asks_for
from controller.scheduling.explain.advice import AdviceRequest, advise
from controller.scheduling.inventory.capacity import Inventory
from schemas.api.explain import Explain
from schemas.api.needs import LayoutView
from schemas.api.plan import PlanItem
from schemas.manifest.deployment import DeploymentSpec
from schemas.placement_reasons import Reason

MAX_INSTANCES: Final = 10_000
_MAX_ADVISED: Final = 5  # deployments; each takes about ten placements, and naming blocking instances many more
NO_HOLDERS: Final = Holders()
EMPTY_QUEUE: Final = Queue()
PlanChange = Literal["create", "replace", "update", "unchanged"]


@dataclass(frozen=True, slots=True)
class ManifestEffect:
    """The effect of one manifest: the change of its deployment, and how many instances have to be placed."""

    name: str
    uid: str
    spec: DeploymentSpec
    change: PlanChange
    to_place: int
    need: Need | str  # a text: why the need is unknown


def plan_items(
    inventory: Inventory,
    effects: Sequence[ManifestEffect],
    holders: Holders = NO_HOLDERS,
    queue: Queue = EMPTY_QUEUE,
    *,
    reserve: ReserveTimes = DEFAULT_RESERVE,
    name_blockers: bool = True,
) -> list[PlanItem]:
    """Places all instances together, higher priority first and behind pending ones. Keeps the manifests' order.

    The first deployments that do not fit get advice on what would make them fit.

    Args:
        inventory: the present inventory; placing consumes it.
        effects: of the manifests.
        holders: claim holders, which the new instances may preempt.
        queue: instances that are pending already; at equal priority they are older.
        reserve: when and how long capacity is reserved for a pending instance.
        name_blockers: whether the first advice names the instances whose end would help.
    """
    newest = [PendingInstance(ask, one.spec.priority, one.spec.preempt) for one in effects for ask in asks_of(one)]
    pending_instances = sorted([*queue.waiting, *newest], key=lambda pending: -pending.priority)
    answers = admit(inventory, pending_instances, holders, reserve=reserve, reserved=queue.reserved)
    decided = {one.decision.instance: one for one in answers}
    names = {worker.id: worker.name for worker in inventory.workers.facts}
    items: list[PlanItem] = []
    advised = 0
    for one in effects:
        advice: list[str] | None = None
        for index in range(one.to_place):
            answer = decided.get(_instance(one, index))
            if answer is not None and isinstance(answer.decision, Unplaced) and not answer.victims and advice is None:
                staying = holders.staying if name_blockers and not advised else ()
                advice = _advice(inventory, one, answer.decision, staying) if advised < _MAX_ADVISED else []
                advised += 1
            items.append(_item(one, index, answer, inventory, names, advice or []))
    return items


def _instance(effect: ManifestEffect, index: int) -> str:
    return f"{effect.name}#{index}"


def asks_of(effect: ManifestEffect) -> list[Ask]:
    """The asks of its instances; none while the need is unknown."""
    if isinstance(effect.need, str):
        return []
    engine = engine_for(effect.spec)
    ask = asks_for(effect.spec, effect.need, engine, instance="", deployment_uid=effect.uid)
    return [ask.for_instance(_instance(effect, n)) for n in range(effect.to_place)]


def _advice(inventory: Inventory, effect: ManifestEffect, decision: Unplaced, holders: Sequence[Holder]) -> list[str]:
    if isinstance(effect.need, str) or decision.reason == Reason.RESERVED:
        return []
    engine = engine_for(effect.spec)
    return advise(inventory, AdviceRequest(effect.spec, effect.need, engine, effect.uid, decision.explain, holders))


def _item(
    effect: ManifestEffect,
    index: int,
    answer: AdmissionDecision | None,
    inventory: Inventory,
    names: Mapping[str, str],
    advice: list[str],
) -> PlanItem:
    if answer is None or isinstance(effect.need, str):
        explain = Explain(workers=0, rejected={}, message=f"{Reason.METADATA_UNKNOWN}: {effect.need}")
        return PlanItem(deployment=effect.name, instance=index, fits=False, explain=explain)
    decision = answer.after_victims or answer.decision
    preempts = [one.instance for one in answer.victims]
    why: Explain | None = None
    if isinstance(answer.decision, Unplaced):
        why = answer.decision.explain.model_copy(update={"advice": [] if preempts else advice})
    if not isinstance(decision, Placed):
        return PlanItem(
            deployment=effect.name,
            instance=index,
            fits=False,
            need=need_view(effect.need, effect.spec.resources),
            explain=why,
        )
    gpus = [claim for claim in decision.claims if inventory.gpu_row(claim.device) is not None]
    layout = decision.layout
    return PlanItem(
        deployment=effect.name,
        instance=index,
        fits=True,
        worker=names[decision.worker_id],
        workers=[names[worker] for worker in decision.workers],
        gpus=[claim.device for claim in gpus],
        memory_mib_per_gpu=gpus[0].memory_mib if gpus else None,
        engine=decision.engine or None,
        layout=LayoutView(gpus=layout.gpus, workers=layout.workers, tp=layout.tp, pp=layout.pp, dp=layout.dp),
        need=need_view(effect.need, effect.spec.resources, decision.engine, layout),
        preempts=preempts,
        explain=why,
    )
