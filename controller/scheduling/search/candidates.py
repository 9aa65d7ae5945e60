"""Candidates: the groups that fit one layout of one ask, with their two ranking keys, kept from decision to decision.

Of two keys the smaller is better; the second decides between groups whose first is equal. No key of a group depends on
another group. So a repeated search updates only the groups that changed, and finds the same as a search from the start.
The strategies:

pack, one GPU: the least memory left over, then a GPU that is already shared, then the group with the fewest unclaimed
GPUs. An exclusive claim leaves nothing over, so the smallest GPU that is large enough wins.
pack, several GPUs: the group with the fewest suitable GPUs, so that large free workers stay free; then as for one GPU.
spread: the fewest instances of this deployment on the worker, then the fewest of all deployments; then the same by GPU,
and the least memory claimed.
no GPU: pack takes the host whose GPUs have the least free memory, so that free GPUs keep the CPU and memory that they
need; then the host with the least memory left over. An ask that claims nothing of a host cannot be packed, and goes
where the fewest instances run.
least_fragmentation: the least loss of what the observed demand could use (`fragmentation.py`), then the group with the
least free memory. Where no demand is known it equals pack.
auto: as pack, of an ask that keeps apart from its siblings (`Siblings`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from controller.domain.placement import Ask, Layout
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.inventory.groups import OF_ONE_KIND, LogReader
from controller.scheduling.inventory.tables import NEVER, Bools, Ints, nth_smallest
from controller.scheduling.search.feasible import FITS, Request, host_checks

# How figures share one integer. Per GPU: 2^11 instances of a deployment, 2^20 instances, 2^31 MiB.
_INSTANCES_BITS: Final = 20
_MEMORY_BITS: Final = 31
_LEFT_BITS: Final = 44  # twice the MiB of a GPU plus one
_WORKER_BITS: Final = 32
_FEW_GPUS: Final = 256  # GPUs that are looked up one by one
_FEW_SIBLINGS: Final = 4  # whose rows are compared with all others
_FEW_GROUPS: Final = 64  # groups that are ranked one by one


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
        """Both keys of these groups, one at least, for the wanted number of GPUs of each, which fits there."""

    def gpu_keys(self, some: Fitting) -> Ints:
        """One key per GPU; smaller is better."""

    def set_apart(self) -> Ints:
        """The groups whose keys depend on more than their own state: others in the same state may have other keys."""


def _nth_key(keys: Ints, suitable: Bools, wanted: Ints) -> Ints:
    """By group: the key of the last GPU that an instance would get there."""
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
        if not self.layout.gpus:
            return self._host_keys(some)
        unclaimed = np.count_nonzero(self.inventory.gpus.whole[some.slots] >= 0, axis=1)
        last = _nth_key(self.gpu_keys(some), some.suitable, wanted)
        if self.layout.gpus > self.layout.workers:
            last = np.minimum(last, (1 << _LEFT_BITS) - 1) | np.count_nonzero(some.suitable, axis=1) << _LEFT_BITS
        return last, unclaimed

    def gpu_keys(self, some: Fitting) -> Ints:
        if self.layout.exclusive:
            return some.have
        keys: Ints = some.have * 2 + (self.inventory.gpus.claims[some.slots] == 0)
        return keys

    def set_apart(self) -> Ints:
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
        workers = self.inventory.workers
        mine, _ = self.inventory.deployment_on(self.ask.deployment_uid)
        own = np.zeros(len(some.workers), dtype=np.int64)
        if mine:
            own[:] = [mine.get(workers.entries[row].id, 0) for row in some.workers.tolist()]
        first = own << _WORKER_BITS | workers.instances[some.workers]
        if not self.layout.gpus:
            return first, np.zeros_like(first)
        return first, _nth_key(self.gpu_keys(some), some.suitable, wanted)

    def gpu_keys(self, some: Fitting) -> Ints:
        gpus = self.inventory.gpus
        memory = np.minimum(gpus.claimed[some.slots], (1 << _MEMORY_BITS) - 1)
        instances = np.minimum(gpus.instances[some.slots], (1 << _INSTANCES_BITS) - 1)
        keys: Ints = (self._own(some.slots) << _INSTANCES_BITS | instances) << _MEMORY_BITS | memory
        return keys

    def set_apart(self) -> Ints:
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
    """The instances of one deployment, as the inventory now has them."""

    inventory: Inventory
    deployment_uid: str

    @property
    def exist(self) -> bool:
        return bool(self.inventory.deployment_on(self.deployment_uid)[0])

    def groups(self) -> Ints:
        return self.inventory.groups_on(self.inventory.deployment_on(self.deployment_uid)[0])

    def hold_any(self, choice: Sequence[Ints]) -> bool:
        return any(bool(self.hold(rows).any()) for rows in choice)

    def hold(self, slots: Ints) -> Bools:
        """By GPU row: whether any of them has claims there."""
        _, mine = self.inventory.deployment_on(self.deployment_uid)
        if not mine or not slots.size:
            return np.zeros(slots.shape, dtype=np.bool_)
        if len(mine) <= _FEW_SIBLINGS:
            rows = [row for uuid in mine if (row := self.inventory.gpu_row(uuid)) is not None]
            return _any_equal(slots, rows)
        if slots.size <= _FEW_GPUS:
            uuids = self.inventory.gpus.uuid
            holds = [row < len(uuids) and uuids[row] in mine for row in slots.ravel().tolist()]
            return np.array(holds, dtype=np.bool_).reshape(slots.shape)
        rows = [row for uuid in mine if (row := self.inventory.gpu_row(uuid)) is not None]
        held: Bools = np.isin(slots, rows)
        return held

    def on(self, workers: Ints) -> Bools:
        """By worker row: whether any of them runs there."""
        mine, _ = self.inventory.deployment_on(self.deployment_uid)
        if len(mine) <= _FEW_SIBLINGS:
            return _any_equal(workers, [row for id_ in mine if (row := self.inventory.worker_row(id_)) is not None])
        entries = self.inventory.workers.entries
        return np.array([entries[row].id in mine for row in workers.tolist()], dtype=np.bool_)


def _any_equal(values: Ints, some: Sequence[int]) -> Bools:
    equal: Bools = np.zeros(values.shape, dtype=np.bool_)
    for value in some:
        equal |= values == value
    return equal


@dataclass(slots=True)
class Apart:
    """Ranks as another ranking does. Of equal groups, those of workers without siblings come first."""

    ranking: Ranking
    siblings: Siblings

    def keys(self, some: Fitting, wanted: Ints) -> tuple[Ints, Ints]:
        first, second = self.ranking.keys(some, wanted)
        return first, second * 2 + self.siblings.on(some.workers)

    def gpu_keys(self, some: Fitting) -> Ints:
        return self.ranking.gpu_keys(some)

    def set_apart(self) -> Ints:
        return np.union1d(self.ranking.set_apart(), self.siblings.groups())


def siblings_of(inventory: Inventory, ask: Ask) -> Siblings | None:
    """The siblings from which an ask keeps apart; None if no sibling is placed, or it is to be packed with them."""
    if not ask.keeps_apart:
        return None
    siblings = Siblings(inventory, ask.deployment_uid)
    return siblings if siblings.exist else None


RankingOf = Callable[[Inventory, Ask, Layout], Ranking]


@dataclass(frozen=True, slots=True)
class Choice:
    """A place: by rank, the worker's row and the rows of its GPUs by index."""

    workers: tuple[int, ...]
    gpus: tuple[Ints, ...]


class Candidates:
    """The groups for one layout of one request.

    `first` and `second` are the ranking keys by group; `first` is NEVER where the group does not fit. A group that is
    not `eligible` never fits, whatever is claimed. The keys of all groups are computed when they are first needed.
    With siblings, GPUs that these hold are not suitable; with `spread` only unclaimed GPUs without instances are.
    """

    def __init__(self, request: Request, layout: Layout, ranking: RankingOf, siblings: Siblings | None = None) -> None:
        self.layout = layout
        self.request = request
        inner = ranking(request.inventory, request.ask, layout)
        # `spread` leaves a worker that it would choose only for a GPU that nothing is on.
        self._empty_alone = siblings is not None and request.ask.strategy == "spread"
        self._ranking: Ranking = inner if siblings is None or self._empty_alone else Apart(inner, siblings)
        self._siblings = siblings
        groups, gpus = request.inventory.groups, request.inventory.gpus
        self.wanted: Ints = request.wanted(layout)[groups.worker]
        self.eligible: Bools = (request.failed_at == FITS)[groups.worker] & request.may_serve(layout, self.wanted)
        self._of_one_kind: Bools | None = None if not groups.level.any() else groups.level == OF_ONE_KIND
        if not request.allows(layout):
            self.eligible[:] = False
        self._usable: Bools | None = request.capable if request.restricted else None
        self._have: Ints = gpus.whole if layout.exclusive else gpus.free
        self._log = LogReader(request.inventory.log, len(groups.worker))
        self._keys: tuple[Ints, Ints] | None = None
        self._best: int | None = None
        if self._states_decide():
            self._best = self._best_by_state()
        else:
            self._rank_all()

    @property
    def first(self) -> Ints:
        return (self._keys or self._rank_all())[0]

    @property
    def second(self) -> Ints:
        return (self._keys or self._rank_all())[1]

    def refresh(self) -> None:
        """Updates the groups that changed since the last call."""
        if (rows := self._log.changed()) is None:
            return
        if self._keys is None:
            self._rank_all()
        else:
            self._rank(rows, *self._keys)

    def best(self, rows: Bools | None = None) -> int | None:
        """The best group, among these rows if given; a group of one kind, if any fits. None if no group fits."""
        if self._keys is None and rows is None:
            return self._best
        first = self.first if rows is None else np.where(rows, self.first, NEVER)
        if self._of_one_kind is not None:
            alone = np.where(self._of_one_kind, first, NEVER)
            first = alone if (alone != NEVER).any() else first
        if not len(first):
            return None
        best = int(first.argmin())
        least = first[best]
        if least == NEVER:
            return None
        equal = np.flatnonzero(first == least)
        return best if len(equal) == 1 else int(equal[self.second[equal].argmin()])

    def gpus_of(self, group: int) -> Ints:
        """The GPUs that an instance would get of a fitting group, in row order."""
        wanted = int(self.wanted[group])
        some = self._fitting(np.array([group]))
        suitable = np.flatnonzero(some.suitable[0])
        if len(suitable) > wanted:
            keys = self._ranking.gpu_keys(some)[0][suitable]
            suitable = np.sort(suitable[keys.argsort(kind="stable")[:wanted]])
        chosen: Ints = some.slots[0][suitable]
        return chosen

    def _fitting(self, rows: Ints) -> Fitting:
        groups = self.request.inventory.groups
        slots = groups.gpus[rows]
        have = self._have[slots]
        suitable: Bools = have >= self.layout.memory_mib if self.layout.gpus else np.zeros(slots.shape, dtype=np.bool_)
        if self._usable is not None:
            suitable &= self._usable[slots]
        if self._empty_alone:
            gpus = self.request.inventory.gpus
            suitable &= (gpus.claims[slots] == 0) & (gpus.instances[slots] == 0)
        elif self._siblings is not None and self.layout.gpus:
            suitable &= ~self._siblings.hold(slots)
        return Fitting(rows, groups.worker[rows], slots, have, suitable)

    def _states_decide(self) -> bool:
        """Whether groups in equal states have equal keys, and one of each is enough to find the best."""
        return (
            len(self.eligible) >= _FEW_GROUPS
            and self.layout.workers == 1
            and not self.request.ask.gpus
            and self._of_one_kind is None
            and bool(self.eligible.all())
        )

    def _best_by_state(self) -> int | None:
        """The best of one group of each state, and of the groups that are set apart; the first of equal groups."""
        equal, apart = self.request.inventory.equal_groups, self._ranking.set_apart()
        equal.refresh()
        best_of: list[tuple[int, int, int]] = []
        for some, alone in ((equal.examples(apart), False), (apart, True)):
            rows, first, second = self._ranked(some)
            if not len(rows):
                continue
            best = np.flatnonzero(first == first.min())
            best = best[second[best] == second[best].min()]
            group = int(rows[best].min()) if alone else equal.first_like(rows[best], apart)
            if group is not None:
                best_of.append((int(first[best[0]]), int(second[best[0]]), group))
        return min(best_of)[2] if best_of else None

    def _rank_all(self) -> tuple[Ints, Ints]:
        size = len(self.eligible)
        keys = self._keys = np.full(size, NEVER, dtype=np.int64), np.zeros(size, dtype=np.int64)
        self._rank(np.flatnonzero(self.eligible), *keys)
        return keys

    def _rank(self, rows: Ints, first: Ints, second: Ints) -> None:
        fitting, *keys = self._ranked(rows)
        first[rows] = NEVER
        first[fitting], second[fitting] = keys

    def _ranked(self, rows: Ints) -> tuple[Ints, Ints, Ints]:
        """The fitting groups of these, with their keys."""
        some, wanted = self._fitting(rows), self.wanted[rows]
        fits = self.eligible[rows]
        if self.layout.gpus:
            fits = fits & (np.count_nonzero(some.suitable, axis=1) >= wanted) & (wanted > 0)
        for _, passed in host_checks(self.request, some.workers):
            fits = fits & passed
        if not fits.all():  # rank only those that fit: ranking is the slower half
            kept = np.flatnonzero(fits)
            rows, wanted = rows[kept], wanted[kept]
            some = Fitting(rows, some.workers[kept], some.slots[kept], some.have[kept], some.suitable[kept])
        if not len(rows):
            return rows, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        return (rows, *self._ranking.keys(some, wanted))
