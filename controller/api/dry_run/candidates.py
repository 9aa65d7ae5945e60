"""Which GPUs could be selected by hand for the instances of a plan. No I/O.

They are judged in the very moment at which the plan decides its first instance: after what comes before it in the
queue, with what is reserved for others taken, and with what has stopped for it gone. So the automatic choice is always
among the selectable.
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
    """Judges the GPUs while a rehearsal decides; until the first instance of a deployment has its place."""

    def __init__(self, asks: Mapping[str, Ask]) -> None:
        """`asks`: by uid, of the deployments to judge for."""
        self._asks = asks
        self._found: dict[str, GpuMisses] = {}
        self._settled: set[str] = set()
        self._promised: dict[str, frozenset[str]] = {}

    def before_each(self, inventory: Inventory, pending: Iterable[PendingInstance]) -> Iterator[PendingInstance]:
        """The same instances; judges when one is taken to be decided, for the first of each deployment."""
        seen: set[str] = set()
        for one in pending:
            uid = one.ask.deployment_uid
            if uid in self._asks and not one.awaited and uid not in seen and uid not in self._settled:
                seen.add(uid)
                self._found[uid] = gpu_misses(inventory, self._asks[uid])
                self._promised[uid] = frozenset() if one.promised is None else frozenset(one.promised.gpus)
            yield one

    def settle(self, uid: str) -> None:
        """An instance of the deployment has its place: what was judged before stays."""
        self._settled.add(uid)

    def found(self, inventory: Inventory, uid: str) -> GpuMisses:
        """What was judged; where no instance was decided, by what is free now."""
        known = self._found.get(uid)
        return gpu_misses(inventory, self._asks[uid]) if known is None else known

    def promised(self, uid: str) -> frozenset[str]:
        """The GPUs that victims have left for it: they are reserved when it is judged, but for no other."""
        return self._promised.get(uid, frozenset())


def watch_for(effects: Iterable[ManifestEffect]) -> CandidateWatch:
    """The watch for all manifests whose need is known."""
    return CandidateWatch({one.uid: ask for one in effects if (ask := one.ask()) is not None})


def candidates_of(
    watch: CandidateWatch, inventory: Inventory, effects: Iterable[ManifestEffect], absences: Absences
) -> dict[str, PlanCandidates]:
    """The answer by name of the deployments, after the rehearsal."""
    return {effect.name: _view(watch, inventory, effect, absences) for effect in effects}


def _view(watch: CandidateWatch, inventory: Inventory, effect: ManifestEffect, absences: Absences) -> PlanCandidates:
    gpus, count = inventory.gpus, len(inventory.gpus.uuid)
    order = np.lexsort((gpus.index[:count], gpus.worker[:count])).tolist()
    owners = sorted(set(gpus.worker[:count].tolist()))
    number = {worker: n for n, worker in enumerate(owners)}
    names = [inventory.workers.facts[worker].name for worker in owners]
    worker = [number[row] for row in gpus.worker[order].tolist()]
    uuid = [gpus.uuid[row] for row in order]
    if isinstance(effect.need, str):
        code, message = [str(Reason.METADATA_UNKNOWN)] * count, [effect.need] * count
    else:
        codes, messages = watch.found(inventory, effect.uid).texts()
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
