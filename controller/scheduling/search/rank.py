"""Ranking of the groups that fit: two keys for every group. Smaller is better; the second decides between equal first.

pack, one GPU: the least memory left over, then a GPU that is already shared, then the group with the fewest unclaimed
GPUs. An exclusive claim leaves nothing over, so the smallest GPU that is large enough wins.
pack, several GPUs: the group with the fewest suitable GPUs, so that large free workers stay whole; then as for one GPU.
spread: the fewest instances of this deployment on the worker, then the fewest of all deployments; then the same by GPU,
and the least memory claimed.
no GPU: pack takes the host whose GPUs have the least free memory, so that free GPUs keep the CPU and memory that they
need; then the host with the least memory left over. An ask that claims nothing of a host cannot be packed, and goes
where the fewest instances run.
least_fragmentation: the least loss of what the observed demand could use (`fragmentation.py`), then the group with the
least free memory. Where no demand is known it equals pack.
auto: as pack, of an ask that keeps apart from its siblings (`Siblings`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from controller.domain.placement import Ask, Layout
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.inventory.tables import NEVER, Bools, Ints, nth_smallest

# How figures share one integer. Per GPU: 2^11 instances of a deployment, 2^20 instances, 2^31 MiB.
_INSTANCES_BITS: Final = 20
_MEMORY_BITS: Final = 31
_LEFT_BITS: Final = 44  # twice the MiB of a GPU plus one
_WORKER_BITS: Final = 32
_FEW: Final = 256  # GPUs that are looked up one by one
_FEW_SIBLINGS: Final = 4  # whose rows are compared with all others


@dataclass(frozen=True, slots=True)
class Fitting:
    """Some groups and their suitable GPUs. All arrays have a row per group; those of GPUs have a column per GPU."""

    groups: Ints
    workers: Ints
    slots: Ints  # rows of the GPUs
    have: Ints  # memory for a claim on each
    suitable: Bools


class Ranking(Protocol):
    """Ranks groups for one layout of one ask."""

    def keys(self, some: Fitting, wanted: Ints) -> tuple[Ints, Ints]:
        """Both keys of these groups, for the wanted number of GPUs of each."""

    def gpu_keys(self, some: Fitting) -> Ints:
        """One key per GPU; smaller is better."""

    def set_apart(self) -> Ints:
        """The groups whose keys depend on more than their own state: others in the same state may have other keys."""


def nth_key(keys: Ints, suitable: Bools, wanted: Ints) -> Ints:
    """By group: the key of the last GPU that an instance would get there."""
    if not len(wanted) or not keys.shape[1]:
        return np.full(len(wanted), NEVER, dtype=np.int64)
    masked = np.where(suitable, keys, NEVER)
    most = int(wanted.max())
    if most == int(wanted.min()):
        return nth_smallest(masked, most)
    ordered = np.sort(masked, axis=1)
    nth: Ints = ordered[np.arange(len(wanted)), np.minimum(wanted, keys.shape[1]) - 1]
    return nth


def free_memory(inventory: Inventory, slots: Ints) -> Ints:
    """By group: the memory free for shared claims."""
    free: Ints = np.maximum(inventory.gpus.free[slots], 0).sum(axis=1)
    return free


@dataclass(slots=True)
class Pack:
    """Fills GPUs and hosts that are already in use."""

    inventory: Inventory
    ask: Ask
    layout: Layout

    def keys(self, some: Fitting, wanted: Ints) -> tuple[Ints, Ints]:
        """See the module."""
        if not self.layout.gpus:
            return self._host_keys(some)
        unclaimed = np.count_nonzero(self.inventory.gpus.whole[some.slots] >= 0, axis=1)
        last = nth_key(self.gpu_keys(some), some.suitable, wanted)
        if self.layout.gpus > self.layout.workers:
            last = np.minimum(last, (1 << _LEFT_BITS) - 1) | np.count_nonzero(some.suitable, axis=1) << _LEFT_BITS
        return last, unclaimed

    def gpu_keys(self, some: Fitting) -> Ints:
        """See the module."""
        if self.layout.exclusive:
            return some.have
        keys: Ints = some.have * 2 + (self.inventory.gpus.claims[some.slots] == 0)
        return keys

    def set_apart(self) -> Ints:
        """None."""
        return np.zeros(0, dtype=np.int64)

    def _host_keys(self, some: Fitting) -> tuple[Ints, Ints]:
        workers, rows = self.inventory.workers, some.workers
        if self.ask.host_memory_mib:
            return free_memory(self.inventory, some.slots), workers.memory[rows] - workers.memory_claimed[rows]
        if self.ask.cpu_milli:
            return free_memory(self.inventory, some.slots), workers.cpu[rows] - workers.cpu_claimed[rows]
        return workers.instances[rows], np.zeros(len(rows), dtype=np.int64)


@dataclass(slots=True)
class Spread:
    """Avoids the deployment's own instances first, then all instances."""

    inventory: Inventory
    ask: Ask
    layout: Layout

    def keys(self, some: Fitting, wanted: Ints) -> tuple[Ints, Ints]:
        """See the module."""
        workers = self.inventory.workers
        mine, _ = self.inventory.deployment_on(self.ask.deployment_uid)
        own = np.zeros(len(some.workers), dtype=np.int64)
        if mine:
            own[:] = [mine.get(workers.facts[row].id, 0) for row in some.workers.tolist()]
        first = own << _WORKER_BITS | workers.instances[some.workers]
        if not self.layout.gpus:
            return first, np.zeros_like(first)
        return first, nth_key(self.gpu_keys(some), some.suitable, wanted)

    def gpu_keys(self, some: Fitting) -> Ints:
        """See the module."""
        gpus = self.inventory.gpus
        memory = np.minimum(gpus.claimed[some.slots], (1 << _MEMORY_BITS) - 1)
        instances = np.minimum(gpus.instances[some.slots], (1 << _INSTANCES_BITS) - 1)
        keys: Ints = (self._own(some.slots) << _INSTANCES_BITS | instances) << _MEMORY_BITS | memory
        return keys

    def set_apart(self) -> Ints:
        """The groups of workers with instances of the deployment."""
        mine, _ = self.inventory.deployment_on(self.ask.deployment_uid)
        return self.inventory.groups_on(mine)

    def _own(self, slots: Ints) -> Ints:
        _, mine = self.inventory.deployment_on(self.ask.deployment_uid)
        own = np.zeros(slots.size, dtype=np.int64)
        if mine:
            uuids = self.inventory.gpus.uuid
            own[:] = [mine.get(uuids[row], 0) if row < len(uuids) else 0 for row in slots.ravel().tolist()]
        return own.reshape(slots.shape)


@dataclass(frozen=True, slots=True)
class Siblings:
    """The instances of one deployment, as the inventory has them now."""

    inventory: Inventory
    deployment_uid: str

    @property
    def exist(self) -> bool:
        """Whether any is placed."""
        return bool(self.inventory.deployment_on(self.deployment_uid)[0])

    def groups(self) -> Ints:
        """The groups of their workers."""
        return self.inventory.groups_on(self.inventory.deployment_on(self.deployment_uid)[0])

    def hold_any(self, choice: Sequence[Ints]) -> bool:
        """Whether one of them is on any of these GPUs, by rank."""
        return any(bool(self.hold(rows).any()) for rows in choice)

    def hold(self, slots: Ints) -> Bools:
        """By GPU row: whether one of them has claims there."""
        _, mine = self.inventory.deployment_on(self.deployment_uid)
        if not mine or not slots.size:
            return np.zeros(slots.shape, dtype=np.bool_)
        if len(mine) <= _FEW_SIBLINGS:
            rows = [row for uuid in mine if (row := self.inventory.gpu_row(uuid)) is not None]
            return _any_equal(slots, rows)
        if slots.size <= _FEW:
            uuids = self.inventory.gpus.uuid
            found = [row < len(uuids) and uuids[row] in mine for row in slots.ravel().tolist()]
            return np.array(found, dtype=np.bool_).reshape(slots.shape)
        rows = [row for uuid in mine if (row := self.inventory.gpu_row(uuid)) is not None]
        held: Bools = np.isin(slots, rows)
        return held

    def on(self, workers: Ints) -> Bools:
        """By worker row: whether one of them runs there."""
        mine, _ = self.inventory.deployment_on(self.deployment_uid)
        if len(mine) <= _FEW_SIBLINGS:
            return _any_equal(workers, [row for one in mine if (row := self.inventory.worker_row(one)) is not None])
        facts = self.inventory.workers.facts
        return np.array([facts[row].id in mine for row in workers.tolist()], dtype=np.bool_)


def _any_equal(values: Ints, some: Sequence[int]) -> Bools:
    found: Bools = np.zeros(values.shape, dtype=np.bool_)
    for one in some:
        found |= values == one
    return found


@dataclass(slots=True)
class Apart:
    """Ranks as another ranking does. Of equal groups, those of workers without siblings come first."""

    ranking: Ranking
    siblings: Siblings

    def keys(self, some: Fitting, wanted: Ints) -> tuple[Ints, Ints]:
        """Both keys of these groups."""
        first, second = self.ranking.keys(some, wanted)
        return first, second * 2 + self.siblings.on(some.workers)

    def gpu_keys(self, some: Fitting) -> Ints:
        """One key per GPU."""
        return self.ranking.gpu_keys(some)

    def set_apart(self) -> Ints:
        """Also the groups of workers with siblings."""
        return np.union1d(self.ranking.set_apart(), self.siblings.groups())


def siblings_of(inventory: Inventory, ask: Ask) -> Siblings | None:
    """The siblings from which an ask keeps apart; None if there are none, or it is to be packed with them."""
    if not ask.keeps_apart:
        return None
    found = Siblings(inventory, ask.deployment_uid)
    return found if found.exist else None
