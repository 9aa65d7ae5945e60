"""The GPUs that could be selected by hand for the instances of a plan. No I/O.

They are judged when the plan decides its first instance: after the instances ahead in the queue and the reservations,
and without the instances that have stopped for it. So the automatic choice is always selectable.
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from controller.api.dry_run.manifests import ManifestEffect
from controller.domain.admission import PendingInstance
from controller.domain.placement import Ask
from controller.scheduling.explain.gpu_misses import GpuMisses, gpu_misses
from controller.scheduling.inventory.capacity import Inventory
from controller.store.placement.plan_reads import Absences
from schemas.api.plan import PlanCandidates
from schemas.placement_reasons import Reason


class CandidateWatch:
    """Judges the GPUs while a rehearsal decides, until the first instance of each deployment is placed."""

    def __init__(self, asks: Mapping[str, Ask]) -> None:
        """`asks`: what each deployment requests, by its uid."""
        self._asks = asks
        self._misses: dict[str, GpuMisses] = {}
        self._settled: set[str] = set()
        self._promised: dict[str, frozenset[str]] = {}

    def before_each(self, inventory: Inventory, pending: Iterable[PendingInstance]) -> Iterator[PendingInstance]:
        """Yields the same instances. Judges for the first instance of each deployment, just before it is decided."""
        judged: set[str] = set()
        for instance in pending:
            uid = instance.ask.deployment_uid
            if uid in self._asks and not instance.awaited and uid not in judged and uid not in self._settled:
                judged.add(uid)
                self._misses[uid] = gpu_misses(inventory, self._asks[uid])
                promised = instance.promised
                self._promised[uid] = frozenset() if promised is None else frozenset(promised.gpus)
            yield instance

    def settle(self, uid: str) -> None:
        """Keeps the judgement, because an instance of the deployment is placed."""
        self._settled.add(uid)

    def misses(self, inventory: Inventory, uid: str) -> GpuMisses:
        """The judgement; by the present capacity if no instance was decided."""
        known = self._misses.get(uid)
        return gpu_misses(inventory, self._asks[uid]) if known is None else known

    def promised(self, uid: str) -> frozenset[str]:
        """The GPUs that victims have left for the deployment. They count as reserved, but for no other deployment."""
        return self._promised.get(uid, frozenset())


def watch_for(effects: Iterable[ManifestEffect]) -> CandidateWatch:
    return CandidateWatch({effect.uid: ask for effect in effects if (ask := effect.ask()) is not None})


def candidates_of(
    watch: CandidateWatch, inventory: Inventory, effects: Iterable[ManifestEffect], absences: Absences
) -> dict[str, PlanCandidates]:
    return {effect.name: _view(watch, inventory, effect, absences) for effect in effects}


def _view(watch: CandidateWatch, inventory: Inventory, effect: ManifestEffect, absences: Absences) -> PlanCandidates:
    gpus, count = inventory.gpus, len(inventory.gpus.uuid)
    order = np.lexsort((gpus.index[:count], gpus.worker[:count])).tolist()
    owners = sorted(set(gpus.worker[:count].tolist()))
    number = {worker: n for n, worker in enumerate(owners)}
    names = [inventory.workers.entries[worker].name for worker in owners]
    worker = [number[row] for row in gpus.worker[order].tolist()]
    uuid = [gpus.uuid[row] for row in order]
    if isinstance(effect.need, str):
        code, message = [str(Reason.METADATA_UNKNOWN)] * count, [effect.need] * count
    else:
        codes, messages = watch.misses(inventory, effect.uid).texts()
        own = watch.promised(effect.uid)
        code = ["" if gpus.uuid[row] in own else codes[row] for row in order]
        message = ["" if gpus.uuid[row] in own else messages[row] for row in order]
    since = [
        absences.workers.get(names[owner]) if why == Reason.NOT_READY
        else absences.gpus.get(gpu) if why == Reason.GPU_UNHEALTHY else None
        for owner, gpu, why in zip(worker, uuid, code, strict=True)
    ]  # fmt: skip
    return PlanCandidates(
        workers=names,
        worker=worker,
        index=gpus.index[order].tolist(),
        uuid=uuid,
        selectable=[not why for why in code],
        code=code,
        message=message,
        since=since,
    )
