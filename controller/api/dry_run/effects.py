"""The outcome of each instance that manifests would create. No I/O."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from controller.api.dry_run.candidates import CandidateWatch
from controller.api.dry_run.manifests import ManifestEffect, instance_name
from controller.api.dry_run.rehearsal import Present, Rehearsal, Rehearsed
from controller.domain.admission import Holder
from controller.domain.placement import Ask, Unplaced, need_view
from controller.engines.registry import engine_for
from controller.scheduling.admission.admit import DEFAULT_RESERVE, ReserveTimes
from controller.scheduling.explain.advice import AdviceRequest, advise
from controller.scheduling.explain.unplaced import headline
from controller.scheduling.inventory.capacity import Inventory
from schemas.api.explain import Explain
from schemas.api.needs import LayoutView
from schemas.api.plan import PlanItem
from schemas.placement_reasons import Reason

_MAX_ADVISED: Final = 5  # deployments; each takes about ten placements, and naming blocking instances many more
_ROLLOUT_WAITS: Final = "the rollout waits for an instance before it that does not fit; the old one goes on running"
_ROLLOUT_PAUSED: Final = "the rollout is paused; the old one goes on running until it is resumed"


def plan_items(
    present: Present,
    effects: Sequence[ManifestEffect],
    *,
    reserve: ReserveTimes = DEFAULT_RESERVE,
    name_blockers: bool = True,
    watch: CandidateWatch | None = None,
) -> list[PlanItem]:
    """Rehearses the apply of all manifests; returns the outcome of each instance, in the manifests' order.

    The first deployments that do not fit get advice.

    Args:
        present: running and pending instances; the rehearsal consumes its inventory.
        effects: what each manifest changes.
        reserve: when and how long capacity is reserved for a pending instance.
        name_blockers: whether the first advice names the instances whose end would help.
        watch: judges every GPU for the instances at the same time.
    """
    inventory = present.inventory
    rehearsal = Rehearsal(present, effects, reserve, watch)
    rehearsal.run()
    names = {worker.id: worker.name for worker in inventory.workers.entries}
    paused = {uid for uid, known in present.deployments.items() if known.rollout is not None and known.rollout.paused}
    items: list[PlanItem] = []
    advised = 0
    for effect in effects:
        advice: list[str] | None = None
        planned, held = rehearsal.planned[effect.uid], rehearsal.blocked(effect.uid)
        for index in range(effect.to_place):
            entry = planned[index] if index < len(planned) else None
            decision = entry.answer.decision if entry is not None and entry.answer is not None else None
            if entry is not None and isinstance(decision, Unplaced) and not entry.victims and advice is None:
                staying = tuple(rehearsal.staying.values()) if name_blockers and not advised else ()
                advice = _advice(inventory, effect, decision, staying) if advised < _MAX_ADVISED else []
                advised += 1
            unreached = _ROLLOUT_PAUSED if effect.uid in paused else _ROLLOUT_WAITS
            items.append(_item(effect, index, entry, inventory, names, advice or [], unreached, held))
    return items


def asks_of(effect: ManifestEffect) -> list[Ask]:
    """The asks of its instances; empty while the need is unknown."""
    if isinstance(effect.need, str):
        return []
    ask = effect.ask()
    assert ask is not None  # noqa: S101 - the need is known
    return [ask.for_instance(instance_name(effect, n)) for n in range(effect.to_place)]


def _advice(inventory: Inventory, effect: ManifestEffect, decision: Unplaced, holders: Sequence[Holder]) -> list[str]:
    if isinstance(effect.need, str) or decision.reason == Reason.RESERVED:
        return []
    engine = engine_for(effect.spec)
    return advise(inventory, AdviceRequest(effect.spec, effect.need, engine, effect.uid, decision.explain, holders))


def _item(
    effect: ManifestEffect,
    index: int,
    entry: Rehearsed | None,
    inventory: Inventory,
    names: Mapping[str, str],
    advice: list[str],
    unreached: str,
    held: str,
) -> PlanItem:
    if isinstance(effect.need, str):
        explain = Explain(workers=0, rejected={}, message=f"{Reason.METADATA_UNKNOWN}: {effect.need}")
        reason = str(Reason.METADATA_UNKNOWN)
        return PlanItem(deployment=effect.name, instance=index, fits=False, reason=reason, explain=explain)
    if entry is None or entry.answer is None:
        explain = Explain(workers=0, rejected={}, message=unreached)
        return PlanItem(deployment=effect.name, instance=index, fits=False, explain=explain)
    answer = entry.waited or entry.answer
    preempts = [victim.instance for victim in entry.victims]
    why: Explain | None = None
    if isinstance(answer.decision, Unplaced):
        why = msgspec.structs.replace(answer.decision.explain, advice=[] if preempts else advice)
    decision = entry.placed or answer.after_victims
    if decision is None:
        unplaced = answer.decision
        if why is not None and held:
            why = msgspec.structs.replace(why, message=f"{why.message}; {held}")
        return PlanItem(
            deployment=effect.name,
            instance=index,
            fits=False,
            need=need_view(effect.need, effect.spec.resources),
            reason=str(unplaced.reason or headline(unplaced.explain)) if isinstance(unplaced, Unplaced) else None,
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
