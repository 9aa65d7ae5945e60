"""The holders as arrays: by group of GPUs, how few of them have to end before a layout fits there.

The figures are lower bounds, exact for one GPU. They cover the complete fleet in a few milliseconds, so that sites are
ordered by the number of holders in the way before any of them is solved.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from controller.domain.admission import Holder
from controller.domain.placement import Layout
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.inventory.tables import NEVER, Bools, Floats, Ints
from controller.scheduling.search.candidates import Candidates

_IMPOSSIBLE: Final = 1 << 30  # more holders than any GPU has; sums of it still fit an integer

_ROUNDING: Final = 1e-6


class _Claims:
    """Claims of holders on rows of one table: GPUs or hosts."""

    def __init__(self, held: Sequence[tuple[int, int, int, int]]) -> None:
        columns = np.array(held, dtype=np.int64).reshape(-1, 4).T
        self.owner, self.row, self.amount, self.whole = columns
        # On each row exclusive claims first, since they have to go in any case, then the largest.
        order = np.lexsort((-self.amount, -self.whole, self.row))
        self.owner, self.row = self.owner[order], self.row[order]
        self.amount, self.whole = self.amount[order], self.whole[order]

    def fewest(self, missing: Ints, allowed: Bools) -> Ints:
        """By row: how few allowed claims have to end to free this amount; impossible where all do not suffice."""
        kept = allowed[self.owner]
        row, amount = self.row[kept], self.amount[kept]
        total = np.cumsum(amount)
        count = np.bincount(row, minlength=len(missing))
        before = np.r_[0, total][np.cumsum(count) - count]
        enough = total - before[row] >= missing[row]
        short = np.bincount(row[~enough], minlength=len(missing))
        fewest: Ints = np.where(short < count, short + 1, _IMPOSSIBLE)
        return np.where(missing > 0, fewest, 0)

    def count(self, allowed: Bools, rows: int, *, whole: bool = False) -> Ints:
        """By row: the number of allowed claims, or with `whole` of exclusive claims alone."""
        kept = allowed[self.owner] & (self.whole > 0) if whole else allowed[self.owner]
        return np.bincount(self.row[kept], minlength=rows).astype(np.int64)


def _enough(group: Ints, part: Floats, missing: Ints) -> Ints:
    """By group: how few parts, the largest first, add up to what is missing; 0 where all do not suffice."""
    order = np.lexsort((-part, group))
    group, total = group[order], np.cumsum(part[order])
    count = np.bincount(group, minlength=len(missing))
    before = np.r_[0.0, total][np.cumsum(count) - count]
    short = np.bincount(group[total - before[group] < missing[group] - _ROUNDING], minlength=len(missing))
    return np.where((missing > 0) & (short < count), short + 1, 0).astype(np.int64)


class HolderIndex:
    """The holders on one inventory. The layout of the inventory must not change while the index is used."""

    def __init__(self, inventory: Inventory, holders: Sequence[Holder]) -> None:
        self.inventory = inventory
        self.holders = tuple(holders)
        self._number = {one.instance: number for number, one in enumerate(self.holders)}
        self._level = np.array([one.level for one in self.holders], dtype=np.int64)
        self._stays = np.ones(len(self.holders), dtype=np.bool_)
        gpus, memory, cpu = [], [], []
        self._on_worker: list[list[int]] = [[] for _ in inventory.workers.entries]
        for number, one in enumerate(self.holders):
            workers = set()
            for claim in one.claims:
                if (row := inventory.gpu_row(claim.device)) is not None:
                    gpus.append((number, row, claim.memory_mib, claim.exclusive))
                    workers.add(int(inventory.gpus.worker[row]))
                elif (row := inventory.host_row(claim.device)) is not None:
                    memory.append((number, row, claim.memory_mib, 0))
                    cpu.append((number, row, claim.cpu_milli, 0))
                    workers.add(row)
            for worker in workers:
                self._on_worker[worker].append(number)
        self._gpus, self._memory, self._cpu = _Claims(gpus), _Claims(memory), _Claims(cpu)
        self._worker = inventory.gpus.worker[self._gpus.row]  # by claim on a GPU
        self._span = self._most_gpus()
        self._traits = tuple(
            np.array(figures, dtype=np.int64)
            for figures in (
                [one.weight for one in self.holders], [int(one.lost_s) for one in self.holders],
                [one.gpus for one in self.holders], [sum(c.memory_mib for c in one.claims) for one in self.holders],
                [-int(one.queued_at) for one in self.holders],
            )
        )  # fmt: skip

    def _most_gpus(self) -> Ints:
        """By worker: the largest number of GPUs that a single holder has there."""
        count = len(self.inventory.workers.entries)
        pairs, numbers = np.unique(self._gpus.owner * count + self._worker, return_counts=True)
        span = np.ones(count, dtype=np.int64)
        np.maximum.at(span, pairs % count, numbers)
        return span

    def remove(self, ended: Iterable[Holder]) -> None:
        for holder in ended:
            self._stays[self._number[holder.instance]] = False

    def levels(self, below: int | None = None) -> list[int]:
        """The levels of the holders with a priority below this one, lowest first."""
        levels: list[int] = np.unique(self._level[self._stays]).tolist()
        return levels if below is None else [level for level in levels if level < 2 * below]

    def up_to(self, level: int | None = None) -> Bools:
        """By holder: whether it is in the index with at most this level."""
        return self._stays if level is None else self._stays & (self._level <= level)

    def on_workers(self, workers: Iterable[int], allowed: Bools) -> list[int]:
        """The numbers of the allowed holders on these workers (rows), each once."""
        return [n for n in dict.fromkeys(n for w in workers for n in self._on_worker[w]) if allowed[n]]

    def shared(self, groups: Ints, allowed: Bools, most: int) -> tuple[Floats, Ints]:
        """For gangs, by each of these groups: the cost of a host where one holder frees several, and that holder.

        The cost is the weight of the holder by the number of the groups' hosts that it frees, at most `most`. Of the
        holders of one host the cheapest counts. Holders are numbered in the order in which they would be preempted.
        """
        count = len(self.inventory.workers.entries)
        among = np.zeros(count, dtype=np.bool_)
        among[self.inventory.groups.worker[groups]] = True
        kept = allowed[self._gpus.owner] & among[self._worker]
        pairs = np.unique(self._gpus.owner[kept] * count + self._worker[kept])
        owner, worker = np.divmod(pairs, count)
        cost = self._traits[0][owner] / np.minimum(np.bincount(owner)[owner], most)
        rank = np.argsort(np.lexsort(tuple(reversed((self._level, *self._traits)))))[owner]
        order = np.lexsort((-rank, -cost, worker))  # the last of each worker is written: the cheapest
        cheapest, leader = np.zeros(count), np.full(count, NEVER, dtype=np.int64)
        cheapest[worker[order]], leader[worker[order]] = cost[order], rank[order]
        rows = self.inventory.groups.worker[groups]
        return cheapest[rows], leader[rows]

    def least(self, groups: Ints, allowed: Bools) -> list[Ints]:
        """The least weight, lost work, size and age on the worker of each of these groups: the second keys of sites."""
        kept = allowed[self._gpus.owner]
        owner, worker = self._gpus.owner[kept], self._worker[kept]
        traits = []
        for trait in self._traits:
            least = np.full(len(self.inventory.workers.entries), NEVER, dtype=np.int64)
            np.minimum.at(least, worker, trait[owner])
            traits.append(least[self.inventory.groups.worker[groups]])
        return traits

    def in_the_way(self, candidates: Candidates, allowed: Bools) -> Ints:
        """By group: how few of the allowed holders have to end before the layout fits; NEVER where all are too few."""
        groups, wanted, ask = self.inventory.groups, candidates.wanted, candidates.request.ask
        fewest = np.zeros(len(groups.worker), dtype=np.int64)
        if candidates.layout.gpus:
            by_gpu = self._by_gpu(candidates.layout, allowed)
            by_gpu[~candidates.request.capable] = _IMPOSSIBLE
            fewest = self._nth(by_gpu[groups.gpus], wanted)
        workers = self.inventory.workers
        for needed, had, claims in (
            (ask.host_memory_mib, workers.memory - workers.memory_claimed, self._memory),
            (ask.cpu_milli, workers.cpu - workers.cpu_claimed, self._cpu),
        ):
            if needed:
                fewest = np.maximum(fewest, claims.fewest(needed - had, allowed)[groups.worker])
        return np.where(candidates.eligible & (fewest < _IMPOSSIBLE), fewest, NEVER)

    def bounds(self, candidates: Candidates, fewest: Ints, allowed: Bools) -> tuple[Ints, Ints]:
        """By group: lower bounds of the number, and of the weight, of the holders that have to end.

        Each holder frees a part of what each GPU lacks. The parts must add up to the GPUs that are missing.

        `fewest`: the result of `in_the_way`.
        """
        lack = np.where(self._by_gpu(candidates.layout, allowed) < _IMPOSSIBLE, self._lack(candidates), NEVER)
        missing = candidates.wanted - np.count_nonzero(lack[self.inventory.groups.gpus] == 0, axis=1)
        group, owner, part = self._parts(candidates.layout, lack, allowed)
        tasks = self._traits[0][owner] > 1
        halves = np.r_[group, group[tasks]], np.r_[np.where(tasks, part / 2, part), part[tasks] / 2]
        number = np.maximum(fewest, _enough(group, part, missing))
        weight = np.maximum(number, _enough(*halves, missing))
        return np.where(fewest == NEVER, NEVER, number), np.where(fewest == NEVER, NEVER, weight)

    def _lack(self, candidates: Candidates) -> Ints:
        """By GPU: claims that have to go, or memory; 0: it has enough; NEVER: it never has."""
        gpus, layout = self.inventory.gpus, candidates.layout
        usable = gpus.usable() & candidates.request.capable
        if layout.exclusive:
            usable &= (gpus.foreign == 0) & (gpus.total >= layout.memory_mib)
            return np.where(usable, gpus.claims, NEVER)
        missing = layout.memory_mib - (gpus.total - gpus.reserved - gpus.claimed - gpus.foreign)
        return np.where(usable, np.where(gpus.exclusive > 0, np.maximum(missing, 1), np.maximum(missing, 0)), NEVER)

    def _parts(self, layout: Layout, lack: Ints, allowed: Bools) -> tuple[Ints, Ints, Floats]:
        """Of each allowed holder in each group: the number of lacking GPUs that it frees, in parts of one."""
        claims, groups = self._gpus, self.inventory.groups
        kept = np.flatnonzero(allowed[claims.owner] & (lack[claims.row] > 0) & (lack[claims.row] != NEVER))
        row = claims.row[kept]
        part = np.ones(len(kept)) if layout.exclusive else np.where(claims.whole[kept] > 0, NEVER, claims.amount[kept])
        part = np.minimum(1.0, part / lack[row])
        group, owner = groups.of_gpu[row], claims.owner[kept]
        if groups.also:
            more = [(place, one) for place, gpu in enumerate(row.tolist()) for one in groups.also.get(gpu, ())]
            places = np.array([place for place, _ in more], dtype=np.int64)
            group = np.r_[group, np.array([one for _, one in more], dtype=np.int64)]
            owner, part = np.r_[owner, owner[places]], np.r_[part, part[places]]
        size = len(self.holders)
        pairs, where = np.unique(group * size + owner, return_inverse=True)
        sums: Floats = np.bincount(where, weights=part, minlength=len(pairs)).astype(np.float64)
        return pairs // size, pairs % size, sums

    def _nth(self, by_gpu: Ints, wanted: Ints) -> Ints:
        """By group: the bound for the GPUs with the fewest. A holder of several GPUs counts once."""
        columns = by_gpu.shape[1]
        if not columns:
            return np.where(wanted > 0, _IMPOSSIBLE, 0).astype(np.int64)
        ordered = np.sort(by_gpu, axis=1)
        last = np.clip(wanted, 1, columns) - 1
        rows = np.arange(len(wanted))
        nth, together = ordered[rows, last], np.cumsum(ordered, axis=1)[rows, last]
        fewest = np.maximum(nth, -(-together // self._span[self.inventory.groups.worker]))
        return np.where((wanted > columns) | (wanted < 1) | (nth >= _IMPOSSIBLE), _IMPOSSIBLE, fewest)

    def _by_gpu(self, layout: Layout, allowed: Bools) -> Ints:
        """By GPU: how few of the allowed holders have to end before it has enough for the layout."""
        gpus = self.inventory.gpus
        rows, usable = len(gpus.total), gpus.usable()
        if layout.exclusive:
            claims = self._gpus.count(allowed, rows)
            possible = usable & (claims == gpus.claims) & (gpus.foreign == 0) & (gpus.total >= layout.memory_mib)
            return np.where(possible, claims, _IMPOSSIBLE)
        whole = self._gpus.count(allowed, rows, whole=True)
        missing = layout.memory_mib - (gpus.total - gpus.reserved - gpus.claimed - gpus.foreign)
        fewest = np.maximum(self._gpus.fewest(missing, allowed), whole)
        return np.where(usable & (whole == gpus.exclusive), fewest, _IMPOSSIBLE)
