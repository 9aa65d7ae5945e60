"""Which of those that fit: `pack` and `spread`, as columns to sort by. Smaller is better, earlier columns weigh more.

pack, one GPU: the least memory left over, then a GPU that is shared already, then the worker with the fewest untouched
GPUs. An exclusive claim leaves nothing over, so there the smallest GPU that is large enough wins.
pack, several GPUs: the worker with the fewest suitable GPUs, so that large free workers stay whole; then as for one.
spread: the fewest instances of this deployment on the worker, then the fewest of all; then the same by GPU, and the
least memory claimed.
no GPU: pack fills the host with the least memory left over; who claims nothing of a host cannot be packed and goes
where the fewest instances are.
`least_fragmentation` ranks as pack for now; it differs only where several workers would be left equally full.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from gpuward.controller.domain.placement import Ask, Layout
from gpuward.controller.scheduling.inventory import Inventory
from gpuward.controller.scheduling.segments import NEVER, Bools, Ints, count_true, nth_smallest

# How a GPU's three spread figures share one integer: 2^11 instances of a deployment, 2^20 instances, 2^31 MiB.
_INSTANCES_BITS: Final = 20
_MEMORY_BITS: Final = 31


@dataclass(slots=True)
class Ranking:
    """How one layout of one ask is ranked over one inventory."""

    inventory: Inventory
    ask: Ask
    layout: Layout
    on_workers: Ints  # of the deployment, for spread only; kept up to date by `placed`
    on_gpus: Ints

    @classmethod
    def of(cls, inventory: Inventory, ask: Ask, layout: Layout) -> "Ranking":
        """Counts the deployment's own instances where the strategy looks at them."""
        spread = ask.strategy == "spread"
        nothing = np.zeros(0, dtype=np.int64)
        return cls(
            inventory,
            ask,
            layout,
            inventory.deployment_on_workers(ask.deployment_uid) if spread else nothing,
            inventory.deployment_on_gpus(ask.deployment_uid) if spread else nothing,
        )

    def placed(self, worker: int, gpus: Ints) -> None:
        """Counts one more instance of the deployment."""
        if self.ask.strategy == "spread":
            self.on_workers[worker] += 1
            self.on_gpus[gpus] += 1

    def gpu_keys(self, rows: slice) -> Ints:
        """One number per GPU; smaller is better."""
        gpus = self.inventory.gpus
        if self.ask.strategy == "spread":
            memory = np.minimum(gpus.claimed[rows], (1 << _MEMORY_BITS) - 1)
            instances = np.minimum(gpus.instances[rows], (1 << _INSTANCES_BITS) - 1)
            crowding: Ints = ((self.on_gpus[rows] << _INSTANCES_BITS | instances) << _MEMORY_BITS) | memory
            return crowding
        left: Ints = gpus.total[rows] if self.layout.exclusive else gpus.total[rows] - gpus.claimed[rows]
        remaining: Ints = left * 2 + (gpus.claims[rows] == 0)
        return remaining

    def worker_columns(self, rows: slice, first_gpu: Ints, suitable: Bools, keys: Ints) -> list[Ints]:
        """The columns to sort these workers by.

        Args:
            rows: the workers' rows.
            first_gpu: where each worker's GPUs begin within `suitable` and `keys`, and where the last one's end.
            suitable: per GPU of these workers, whether it may be taken.
            keys: what `gpu_keys` says of them.
        """
        workers = self.inventory.workers
        columns: list[Ints] = []
        if self.ask.strategy == "spread":
            columns += [self.on_workers[rows], workers.instances[rows]]
        if self.layout.gpus:
            worst = nth_smallest(np.where(suitable, keys, NEVER), first_gpu, self.layout.gpus)
            untouched = self.inventory.gpus.claims[_span(workers.first_gpu, rows)] == 0
            if self.ask.strategy == "spread":
                columns += [worst]
            elif self.layout.gpus == 1:
                columns += [worst, count_true(untouched, first_gpu)]
            else:
                columns += [count_true(suitable, first_gpu), worst, count_true(untouched, first_gpu)]
        elif self.ask.strategy != "spread":
            if self.ask.host_memory_mib:
                columns += [workers.memory[rows] - workers.memory_claimed[rows]]
            elif self.ask.cpu_milli:
                columns += [workers.cpu[rows] - workers.cpu_claimed[rows]]
            columns += [workers.instances[rows]]
        return columns


def _span(first_gpu: Ints, workers: slice) -> slice:
    """The GPU rows of a run of workers."""
    return slice(int(first_gpu[workers.start]), int(first_gpu[workers.stop]))
