"""The holders of one site that have to end: the cheapest set without which the ask fits there.

Sets are tried from the smallest number upwards. A set is tried only if its holders free enough together, and the number
of tried sets is limited, so that the time is bounded.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import comb
from operator import itemgetter
from typing import Final

from controller.domain.admission import Holder
from controller.scheduling.admission.holder_index import HolderIndex
from controller.scheduling.admission.sites import Site
from controller.scheduling.inventory.tables import NEVER, Bools

_MAX_SETS: Final = 4_000  # sets of holders tried on one site, and steps to find them
_SETS_OF: Final = 8  # holders; a set of more counts as several, by the time that it takes
_MAX_SEEDS: Final = 24  # holders with which a set is built up, one after the other
_ROUNDING: Final = 1e-6
Cost = Callable[[Sequence[Holder]], tuple[object, ...]]


class SiteProblem:
    """The holders of one site, with the capacity that each of them frees there."""

    def __init__(self, index: HolderIndex, site: Site, allowed: Bools, excluded: frozenset[str] = frozenset()) -> None:
        self._index, self._site = index, site
        inventory = index.inventory
        groups, gpus = inventory.groups, inventory.gpus
        self._layout, self._ask = site.candidates.layout, site.candidates.request.ask
        self._places: defaultdict[int, list[int]] = defaultdict(list)  # by worker; a place is the number of a group
        self._of_gpu: defaultdict[int, list[int]] = defaultdict(list)  # the places of a GPU, by its row
        capable = site.candidates.request.capable & gpus.usable()
        for place, group in enumerate(site.groups):
            self._places[int(groups.worker[group])].append(place)
            for row in groups.gpus[group].tolist():
                if row < len(gpus.uuid) and capable[row]:
                    self._of_gpu[row].append(place)
        self._lacks = {row: self._lack(row) for row in self._of_gpu}
        # By place: how many GPUs are not suitable yet.
        self._missing = [int(site.candidates.wanted[group]) if self._layout.gpus else 0 for group in site.groups]
        for row, places in self._of_gpu.items():
            for place in places:
                self._missing[place] -= self._lacks[row] is None
        self._short = {worker: self._host_lack(worker) for worker in self._places}  # memory and CPU
        self._unready = {worker for worker in self._places if not self._is_ready(worker, {}, 0, 0)}
        self._needed = self._layout.workers - (len(self._places) - len(self._unready))  # hosts to become ready
        self.holders = self._relevant(allowed, excluded)
        self._frees = [self._freed_by(one) for one in self.holders]
        self._lacking_on: defaultdict[int, list[int]] = defaultdict(list)
        for row, lack in self._lacks.items():
            if lack is not None:
                self._lacking_on[self.owner(row)].append(row)
        self._gains = [self._gain(position) for position in range(len(self.holders))]

    def _lack(self, row: int) -> tuple[int, int] | None:
        """The lack of a GPU: claims that have to go (exclusive, or all), and memory. None if it has enough."""
        gpus, layout = self._index.inventory.gpus, self._layout
        if layout.exclusive:
            if gpus.foreign[row] or gpus.total[row] < layout.memory_mib:
                return NEVER, NEVER
            return (int(gpus.claims[row]), 0) if gpus.claims[row] else None
        if gpus.free[row] >= layout.memory_mib:
            return None
        had = gpus.total[row] - gpus.reserved[row] - gpus.claimed[row] - gpus.foreign[row]
        return int(gpus.exclusive[row]), int(layout.memory_mib - had)

    def _host_lack(self, row: int) -> tuple[int, int]:
        workers, ask = self._index.inventory.workers, self._ask
        memory = ask.host_memory_mib - int(workers.memory[row] - workers.memory_claimed[row])
        cpu = ask.cpu_milli - int(workers.cpu[row] - workers.cpu_claimed[row])
        return memory if ask.host_memory_mib else 0, cpu if ask.cpu_milli else 0

    def _is_ready(self, worker: int, suitable: Mapping[int, int], memory: int, cpu: int) -> bool:
        """Whether a host has enough, with further suitable GPUs by place, and memory and CPU freed."""
        short = self._short[worker]
        return (
            memory >= short[0]
            and cpu >= short[1]
            and any(suitable.get(place, 0) >= self._missing[place] for place in self._places[worker])
        )

    def _relevant(self, allowed: Bools, excluded: frozenset[str]) -> list[Holder]:
        """The holders that free anything that the ask lacks, on hosts that are not ready."""
        relevant = []
        inventory = self._index.inventory
        short = {worker for worker in self._unready if max(self._short[worker]) > 0}
        owners = inventory.gpus.worker
        lacking = {row for row, lack in self._lacks.items() if lack is not None and int(owners[row]) in self._unready}
        for number in self._index.on_workers(self._unready, allowed):
            holder = self._index.holders[number]
            if holder.instance in excluded:
                continue
            rows = (inventory.gpu_row(claim.device) for claim in holder.claims)
            hosts = (inventory.host_row(claim.device) for claim in holder.claims)
            if not lacking.isdisjoint(rows) or not short.isdisjoint(hosts):
                relevant.append(holder)
        return relevant

    def _freed_by(self, holder: Holder) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
        """On hosts that are not ready: of GPUs that lack something row, claims, memory; of hosts row, memory, CPU."""
        inventory, gpus, hosts = self._index.inventory, [], []
        for claim in holder.claims:
            row = inventory.gpu_row(claim.device)
            lacks = row is not None and self._lacks.get(row) is not None
            if row is not None and lacks and int(inventory.gpus.worker[row]) in self._unready:
                gpus.append((row, 1 if self._layout.exclusive else int(claim.exclusive), claim.memory_mib))
            host = inventory.host_row(claim.device)
            if host is not None and host in self._unready:
                hosts.append((host, claim.memory_mib, claim.cpu_milli))
        return gpus, hosts

    def _gain(self, position: int) -> float:
        """The hosts that a holder makes ready, in parts of one. The sum of a set is at least the hosts it frees."""
        parts: defaultdict[int, float] = defaultdict(float)  # by place
        gpus, hosts = self._frees[position]
        for row, claims, memory in gpus:
            lack = self._lacks[row] or (0, 0)
            part = claims / lack[0] if lack[0] > 0 else memory / lack[1] if lack[1] > 0 else 1.0
            for place in self._of_gpu[row]:
                parts[place] += min(1.0, part) / max(self._missing[place], 1)
        gain = 0.0
        for worker in {*(host for host, _, _ in hosts), *(self.owner(row) for row, _, _ in gpus)}:
            of_gpus = max(parts.get(place, 0.0) for place in self._places[worker])
            enough = any(self._missing[place] <= 0 for place in self._places[worker])
            gain += 1.0 if enough else min(1.0, of_gpus)
        return gain

    def freed_by(self, position: int) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
        """The freed capacity of a holder: of GPUs row, claims, memory; of hosts row, memory, CPU."""
        return self._frees[position]

    def owner(self, row: int) -> int:
        """The host of a GPU, both by row."""
        return int(self._index.inventory.gpus.worker[row])

    def fits(self, ended: Sequence[int]) -> bool:
        """Whether the ask fits once the holders at these positions have ended."""
        return _Ended(self, ended).ready >= self._needed

    def rows_on(self, worker: int) -> Sequence[int]:
        """The GPUs of a host that lack something, by row."""
        return self._lacking_on.get(worker, ())

    def is_ready(self, worker: int, freed: Mapping[int, Sequence[int]], memory: int, cpu: int) -> bool:
        """Whether a host has enough with these claims and this memory freed by GPU, and memory and CPU freed on it."""
        suitable: defaultdict[int, int] = defaultdict(int)
        for row in self.rows_on(worker):
            lack = self._lacks[row]
            if lack is not None and (now := freed.get(row)) is not None and now[0] >= lack[0] and now[1] >= lack[1]:
                for place in self._of_gpu[row]:
                    suitable[place] += 1
        return self._is_ready(worker, suitable, memory, cpu)

    def cheapest(self, cost: Cost, most: float) -> list[Holder] | None:
        """The cheapest set of holders without which the ask fits; None if each has more than `most` holders.

        Beyond the bound on the sets that are tried, the set may cost more than needed, but each of its holders is
        needed.
        """
        everything = range(len(self.holders))
        if not self.fits(everything):
            return None
        orders = [*self._orders(), *self._built_up()]
        sets = [self._at(self._reduced(order)) for order in orders]
        least, best = min(((cost(chosen), chosen) for chosen in sets), key=itemgetter(0))
        steps = _MAX_SETS
        for size in range(max(self._site.fewest, 1), len(self.holders) + 1):
            worth = most_worth_trying(best)
            if size > min(most, worth):
                break
            # Sets of equal weight only differ in lost work: these are compared where all of them can be.
            if size == worth and comb(len(self.holders), size) * (1 + size // _SETS_OF) > steps:
                break
            for positions in self._sets(size):
                steps -= 1 if positions is None else 1 + size // _SETS_OF
                if steps < 0:
                    return best if len(best) <= most else None
                if positions is None:
                    continue
                chosen = self._at(positions)
                if (costs := cost(chosen)) < least and self.fits(positions):
                    least, best = costs, chosen
        return best if len(best) <= most else None

    def _sets(self, size: int) -> Iterator[tuple[int, ...] | None]:
        """Sets of `size` holders whose gains add up to what is needed. None is a step without a set."""
        order = sorted(range(len(self.holders)), key=lambda n: -self._gains[n])
        stack: list[tuple[tuple[int, ...], int, float]] = [((), 0, self._needed - _ROUNDING)]
        while stack:
            chosen, first, missing = stack.pop()
            left = size - len(chosen)
            if not left:
                yield chosen
                continue
            yield None
            enough = [n for n in range(first, len(order) - left + 1) if self._gains[order[n]] * left >= missing]
            stack += [((*chosen, order[n]), n + 1, missing - self._gains[order[n]]) for n in reversed(enough)]

    def _at(self, positions: Sequence[int]) -> list[Holder]:
        return [self.holders[position] for position in positions]

    def _orders(self) -> Iterator[list[int]]:
        """Orders in which holders are spared: those that shall stay come first."""

        def size(n: int) -> int:
            return sum(memory for _, _, memory in self._frees[n][0])

        everything = range(len(self.holders))
        for sign in (1, -1):
            yield sorted(everything, key=lambda n: (
                -self.holders[n].level, -self.holders[n].weight, sign * self.holders[n].gpus, sign * size(n),
                self.holders[n].queued_at, self.holders[n].instance))  # fmt: skip

    def _built_up(self) -> Iterator[list[int]]:
        """Further orders, for gangs: of sets that are built up from one holder, by what each frees for its weight.

        Each holder of such a set makes a host ready, by itself or with an earlier one.
        """
        if self._layout.workers == 1:
            return

        def worth(n: int) -> tuple[float, ...]:
            return -self._gains[n] / self.holders[n].weight, self.holders[n].level, self.holders[n].lost_s

        order = sorted(range(len(self.holders)), key=worth)
        yield order[::-1]
        most = max(self._gains, default=0.0)
        for seed in order[:_MAX_SEEDS]:
            if self._gains[seed] + most < 1 - _ROUNDING:  # it and any other holder free no host
                continue
            ended, state = [seed], _Ended(self, [seed])
            for n in order:
                if state.ready >= self._needed:
                    break
                before = state.ready
                if n == seed:
                    continue
                state.end(n)
                if state.ready > before:
                    ended.append(n)
                else:
                    state.spare(n)
            if state.ready >= self._needed:
                yield ended

    def _reduced(self, order: Sequence[int]) -> list[int]:
        """These holders less those that need not end, spared in this order."""
        state, needed = _Ended(self, order), set(order)
        for position in order:
            state.spare(position)
            if state.ready >= self._needed:
                needed.remove(position)
            else:
                state.end(position)
        return [position for position in order if position in needed]


class _Ended:
    """The capacity that some holders free. Adding or removing a holder concerns only its own hosts."""

    def __init__(self, problem: SiteProblem, positions: Sequence[int]) -> None:
        self._problem = problem
        self._freed: dict[int, list[int]] = {}  # by GPU row: claims, memory
        self._hosts: dict[int, list[int]] = {}  # by host row: memory, CPU
        self._ready: set[int] = set()
        touched = {host for position in positions for host in self._add(position, 1)}
        self._judge(touched)

    @property
    def ready(self) -> int:
        """The number of hosts that become ready."""
        return len(self._ready)

    def end(self, position: int) -> None:
        self._judge(self._add(position, 1))

    def spare(self, position: int) -> None:
        self._judge(self._add(position, -1))

    def _add(self, position: int, sign: int) -> set[int]:
        gpus, on_hosts = self._problem.freed_by(position)
        touched = set()
        for row, claims, memory in gpus:
            freed = self._freed.setdefault(row, [0, 0])
            freed[0] += sign * claims
            freed[1] += sign * memory
            touched.add(self._problem.owner(row))
        for host, memory, cpu in on_hosts:
            on_host = self._hosts.setdefault(host, [0, 0])
            on_host[0] += sign * memory
            on_host[1] += sign * cpu
            touched.add(host)
        return touched

    def _judge(self, hosts: Iterable[int]) -> None:
        for host in hosts:
            memory, cpu = self._hosts.get(host, (0, 0))
            if self._problem.is_ready(host, self._freed, memory, cpu):
                self._ready.add(host)
            else:
                self._ready.discard(host)


def most_worth_trying(best: Sequence[Holder]) -> float:
    """Of a set that is cheaper than this one, the largest weight: more only to spare immovable instances."""
    highest = max((holder.level for holder in best), default=0)
    immovable = sum(not holder.movable for holder in best if holder.level == highest)
    return float("inf") if immovable > 1 else sum(holder.weight for holder in best)
