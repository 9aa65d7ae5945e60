"""Asks in, decisions out: each ask in turn takes the best place that is left.

Equal asks that follow each other are decided together. Everything is filtered and ranked once; then each takes the
first of the order, and only the worker that was touched is filtered and ranked again. No key of one worker depends on
another worker's state, so the answers are those of one by one.
"""

import heapq
from collections.abc import Iterator, Sequence
from itertools import groupby, product

import numpy as np

from gpuward.controller.domain.placement import Ask, Decision, Layout, Placed, PlannedClaim, Unplaced
from gpuward.controller.scheduling.explain import explain_unplaced
from gpuward.controller.scheduling.feasible import (
    FITS,
    Request,
    fixed_gpu_checks,
    free_gpu_checks,
    host_checks,
    resolve,
)
from gpuward.controller.scheduling.inventory import Inventory
from gpuward.controller.scheduling.rank import Ranking
from gpuward.controller.scheduling.segments import Bools, Ints, count_true

Key = tuple[int, ...]  # the ranking's columns and, last, the worker's row


def place(inventory: Inventory, asks: Sequence[Ask]) -> list[Decision]:
    """Decides every ask in the order given, reserving as it goes.

    Begins a pass: `inventory.rollback()` afterwards takes everything back, `unreserve` a single decision.

    Returns:
        One decision per ask, in the same order.
    """
    inventory.begin_pass()
    decisions: list[Decision] = []
    for _, equal in groupby(asks, key=Ask.shape):
        decisions += _place_equal(inventory, list(equal))
    return decisions


def _place_equal(inventory: Inventory, asks: list[Ask]) -> list[Decision]:
    request = resolve(inventory, asks[0])
    decisions: list[Decision] = []
    waiting = iter(asks)
    ask = next(waiting, None)
    for candidates in _candidates(request):
        while ask is not None and (found := candidates.take()) is not None:
            placed = _claims(request, ask, candidates.layout, *found)
            inventory.reserve(placed, ask.deployment_uid)
            candidates.touched(*found)
            decisions.append(placed)
            ask = next(waiting, None)
    if ask is not None:
        explain = explain_unplaced(request)
        decisions += [Unplaced(a.instance, explain) for a in (ask, *waiting)]
    return decisions


def _candidates(request: Request) -> Iterator["Candidates"]:
    """Layouts in order of preference; workers to be avoided only after all of them failed elsewhere."""
    eligible = request.fell_at == FITS
    rounds = [eligible]
    if request.ask.avoid_workers:
        avoid = np.array([w.id in request.ask.avoid_workers for w in request.inventory.workers.facts], dtype=np.bool_)
        rounds = [eligible & ~avoid, eligible & avoid]
    for mask, layout in product(rounds, request.ask.layouts):
        if mask.any() and (request.named is None or request.named == layout.gpus):
            yield Candidates(request, layout, mask)


class Candidates:
    """The workers that fit one layout, best first."""

    def __init__(self, request: Request, layout: Layout, eligible: Bools) -> None:
        self.layout = layout
        self._request = request
        self._eligible = eligible
        self._ranking = Ranking.of(request.inventory, request.ask, layout)
        self._usable: Bools = np.logical_and.reduce([passed for _, passed in fixed_gpu_checks(request, layout)])
        fits, columns = self._evaluate(0, len(eligible))
        rows = np.flatnonzero(fits)
        self._columns = columns
        self._order = rows[np.lexsort([column[rows] for column in reversed(columns)])]
        self._next = 0
        self._again: list[Key] = []  # a heap of those that were touched and still fit

    def take(self) -> tuple[int, Ints] | None:
        """The best worker's row and the rows of its GPUs, None where nobody fits. To be followed by `touched`."""
        untouched = self._front()
        if self._again and (untouched is None or self._again[0] < untouched):
            worker = heapq.heappop(self._again)[-1]
        elif untouched is not None:
            worker = untouched[-1]
            self._next += 1
        else:
            return None
        return worker, self._best_gpus(worker)

    def touched(self, worker: int, gpus: Ints) -> None:
        """Ranks the worker again after its GPUs were reserved."""
        self._ranking.placed(worker, gpus)
        fits, columns = self._evaluate(worker, worker + 1)
        if fits[0]:
            heapq.heappush(self._again, (*(int(column[0]) for column in columns), worker))

    def _front(self) -> Key | None:
        if self._next >= len(self._order):
            return None
        worker = int(self._order[self._next])
        return (*(int(column[worker]) for column in self._columns), worker)

    def _gpu_rows(self, begin: int, end: int) -> slice:
        first = self._request.inventory.workers.first_gpu
        return slice(int(first[begin]), int(first[end]))

    def _suitable(self, rows: slice) -> Bools:
        suitable: Bools = self._usable[rows]
        for _, passed in free_gpu_checks(self._request, self.layout, rows):
            suitable = suitable & passed
        return suitable

    def _evaluate(self, begin: int, end: int) -> tuple[Bools, list[Ints]]:
        """Whether the workers from `begin` to before `end` fit, and their columns."""
        rows, workers = self._gpu_rows(begin, end), slice(begin, end)
        first = self._request.inventory.workers.first_gpu[begin : end + 1] - rows.start
        suitable = self._suitable(rows)
        fits = self._eligible[workers] & (count_true(suitable, first) >= self.layout.gpus)
        for _, passed in host_checks(self._request, workers):
            fits = fits & passed
        return fits, self._ranking.worker_columns(workers, first, suitable, self._ranking.gpu_keys(rows))

    def _best_gpus(self, worker: int) -> Ints:
        rows = self._gpu_rows(worker, worker + 1)
        suitable = np.flatnonzero(self._suitable(rows))
        order = np.argsort(self._ranking.gpu_keys(rows)[suitable], kind="stable")
        chosen: Ints = np.sort(suitable[order[: self.layout.gpus]])
        chosen += rows.start
        return chosen


def _claims(request: Request, ask: Ask, layout: Layout, worker: int, gpu_rows: Ints) -> Placed:
    """The claims on the GPUs, by index, and last the one on the host."""
    workers, gpus = request.inventory.workers, request.inventory.gpus
    claims = [
        PlannedClaim(
            device=gpus.uuid[row],
            memory_mib=int(gpus.total[row]) if layout.exclusive else layout.memory_mib,
            cpu_milli=0,
            exclusive=layout.exclusive,
            position=position,
        )
        for position, row in enumerate(gpu_rows.tolist())
    ]
    host = PlannedClaim(workers.host_uuid[worker], ask.host_memory_mib, ask.cpu_milli, False, len(claims))
    return Placed(ask.instance, (workers.facts[worker].id,), (*claims, host), layout, ask.engine)
