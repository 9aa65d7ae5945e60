"""Cancellable long work: shared between owners of equal input, run in killable children, fair to quick computations.

It does not know what is computed or why. The caller checks whether a result still counts.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Hashable
from datetime import datetime
from functools import partial
from itertools import count
from typing import Any, TypeAlias

import structlog

from controller.runtime.child import run_child
from controller.runtime.clock import Clock
from controller.runtime.metrics import Metrics
from controller.runtime.outcome import RetryableError
from controller.runtime.slots import Cancelled, Computation, SlotKind, SlotQueue, Slots, Work
from controller.runtime.tasks import end_tasks

log = structlog.get_logger(__name__)

LIFO_SLICE_S = 0.75
# A child that has not started to work by then counts as slow. On an idle machine it takes a tenth of a second.
LOAD_LIMIT_S = 15.0
# Cancels come in bursts, and the next computations in the queue are likely to be cancelled next. In a burst of
# deletes, starting a new child for each of them at once cost the loop more than all other work.
REFILL_PAUSE_S = 0.1
LATE_S = 0.1  # a computation must be gone this soon after the commit that made it obsolete
_CLOSE_LIMIT_S = 15.0

OnDone: TypeAlias = Callable[[Hashable, str, Any], None]
Runner: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]


class Computations:
    """Runs computations for owners, each in a child, at most `pool_size` at once.

    All slots but one are FIFO. The remaining one is LIFO: it takes the newest fresh computation and gives it a time
    slice, counted from when its child starts to work: on a busy machine starting a child takes longer than a slice. If
    the computation needs longer while other fresh computations wait, its child is killed and it is requeued at its
    place by arrival. So a quick computation behind a hundred slow ones is done within seconds.

    All methods are called from the loop's thread.

    Args:
        on_done: `(owner, input_hash, result or exception)`, called once for every owner that has not cancelled. An
            exception has `retryable`, as ChildFailure has. It must not raise, nor start or cancel anything itself.
        pool_size: children at once; by default twice the cores that this process may use.
        max_waiting: bound on the queue for slots; beyond it `on_done` gets a RetryableError at once.
        slice_s: the LIFO slot's time slice.
        load_limit_s: limit on the start of a child in the LIFO slot.
        refill_pause_s: the slots of cancelled computations stay empty for this long.
        runner: runs one computation until it is done or cancelled; called as `run_child` is.
        loop_lag_s: the event loop's worst recent lag, for the log.
    """

    def __init__(
        self,
        on_done: OnDone,
        *,
        clock: Clock,
        metrics: Metrics,
        pool_size: int | None = None,
        max_waiting: int = 100_000,
        slice_s: float = LIFO_SLICE_S,
        load_limit_s: float = LOAD_LIMIT_S,
        refill_pause_s: float = REFILL_PAUSE_S,
        runner: Runner = run_child,
        loop_lag_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        size = 2 * len(os.sched_getaffinity(0)) if pool_size is None else pool_size
        if size < 1:
            raise ValueError(f"pool_size must be at least 1, got {size}")
        self._on_done = on_done
        self._clock = clock
        self._metrics = metrics
        self._max_waiting = max_waiting
        self._slice_s = slice_s
        self._load_limit_s = load_limit_s
        self._refill_pause_s = refill_pause_s
        self._pause: asyncio.TimerHandle | None = None
        self._runner = runner
        self._loop_lag_s = loop_lag_s
        self._arrivals = count()
        self._slots = Slots(size)
        self._queue: SlotQueue[Computation] = SlotQueue()
        self._by_hash: dict[str, Computation] = {}
        self._by_owner: dict[Hashable, Computation] = {}
        self._closed = False

    @property
    def in_flight(self) -> int:
        """Number of children, including those being killed."""
        return len(self._slots.running)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def start(self, owner: Hashable, work: Work) -> None:
        """Has `work` computed for `owner`; does nothing if it is being computed already.

        Cancels another computation of this owner. Calls `on_done` at once, with a RetryableError, if the queue is full
        or `aclose` was called.
        """
        current = self._by_owner.get(owner)
        if current is not None:
            if current.work.input_hash == work.input_hash:
                return
            self.cancel(owner)
        computation = self._by_hash.get(work.input_hash)
        if computation is None:
            refusal = self._refusal()
            if refusal is not None:
                self._on_done(owner, work.input_hash, refusal)
                return
            computation = Computation(work, next(self._arrivals), owners={})
            self._by_hash[work.input_hash] = computation
            self._queue.append(computation.arrival, computation)
            self._metrics.count(work.purpose, "started")
        computation.owners[owner] = None
        self._by_owner[owner] = computation
        self._fill()

    def cancel(self, owner: Hashable, *, committed_at: datetime | None = None) -> None:
        """Removes `owner` from its computation, if any; the last owner's cancel kills the child.

        `committed_at`: commit of the change that made it obsolete, for the metric.
        """
        computation = self._by_owner.pop(owner, None)
        if computation is None:
            return
        del computation.owners[owner]
        if computation.owners:
            return
        # From here on the same hash is a new computation: no owner may be added to this one.
        del self._by_hash[computation.work.input_hash]
        computation.cancelled = Cancelled(committed_at, known_at=self._clock.now())
        if computation.task is None:
            self._queue.remove(computation.arrival)
            self._count_cancelled(computation)
        else:
            if computation.kill is not None:
                computation.kill()  # the task would do it, but only when the loop gets to it
            computation.task.cancel()

    async def aclose(self) -> None:
        """Cancels everything and waits until all children are gone; `on_done` is not called."""
        self._closed = True
        for owner in list(self._by_owner):
            self.cancel(owner)
        running = [computation.task for computation in self._slots.running if computation.task is not None]
        await end_tasks(running, limit_s=_CLOSE_LIMIT_S)
        # The tasks' callbacks, which count, run one iteration of the loop after the tasks.
        await asyncio.sleep(0)
        if self._pause is not None:
            self._pause.cancel()

    def _refusal(self) -> RetryableError | None:
        if self._closed:
            return RetryableError("computations are closed: the controller is stopping")
        if len(self._queue) >= self._max_waiting:
            return RetryableError(f"{self._max_waiting} computations are queued already, which is the limit")
        return None

    def _fill(self) -> None:
        """Fills free slots from the queue, and frees the LIFO slot if its computation has used up its time slice."""
        if self._pause is not None:
            return
        while len(self._queue) and (slot := self._slots.free_slot()) is not None:
            oldest = self._queue.oldest()
            lifo = self._slots.lifo
            if slot is SlotKind.FIFO:
                if lifo is not None and not lifo.requeued and oldest is not None and lifo.arrival < oldest:
                    # It is next in order anyway: it keeps its child in a FIFO slot, and the LIFO slot becomes free.
                    self._make_fifo(lifo)
                    continue
                arrival = oldest
            else:
                newest = self._queue.newest_fresh()
                arrival = oldest if newest is None else newest
            if arrival is not None:
                self._launch(self._queue[arrival], slot)
        lifo = self._slots.lifo
        if lifo is not None and lifo.slice_over and self._queue.fresh and not lifo.requeued:
            lifo.requeued = True
            if lifo.task is not None:
                lifo.task.cancel()

    def _launch(self, computation: Computation, slot: SlotKind) -> None:
        self._queue.remove(computation.arrival)
        work = computation.work
        computation.slot = slot
        computation.requeued = computation.slice_over = False
        computation.task = asyncio.create_task(
            self._runner(
                work.target,
                work.payload,
                deadline_s=work.deadline_s,
                memory_bytes=work.memory_bytes,
                on_start=partial(setattr, computation, "kill"),
                on_working=partial(self._begin_slice, computation),
            ),
            name=f"computation-{work.purpose}-{work.input_hash}",
        )
        if slot is SlotKind.LIFO:
            self._end_slice_in(self._load_limit_s, computation)
        self._slots.running.add(computation)
        self._slots.lifo_next = slot is SlotKind.FIFO
        # A callback, because a task that is cancelled before its first step never runs its own code.
        computation.task.add_done_callback(partial(self._ended, computation))
        self._metrics.in_flight(len(self._slots.running))

    def _pause_refill(self) -> None:
        if self._pause is None and len(self._queue):
            self._pause = asyncio.get_running_loop().call_later(self._refill_pause_s, self._end_pause)

    def _end_pause(self) -> None:
        self._pause = None
        self._fill()

    def _begin_slice(self, computation: Computation) -> None:
        if computation.slot is SlotKind.LIFO and not computation.slice_over:
            self._end_slice_in(self._slice_s, computation)

    def _end_slice_in(self, seconds: float, computation: Computation) -> None:
        if computation.slice_timer is not None:
            computation.slice_timer.cancel()
        computation.slice_timer = asyncio.get_running_loop().call_later(seconds, self._end_slice, computation)

    def _end_slice(self, computation: Computation) -> None:
        computation.slice_over = True
        self._fill()

    @staticmethod
    def _make_fifo(computation: Computation) -> None:
        computation.slot = SlotKind.FIFO
        if computation.slice_timer is not None:
            computation.slice_timer.cancel()
            computation.slice_timer = None

    def _ended(self, computation: Computation, task: asyncio.Task[Any]) -> None:
        """Frees the slot of a child that is gone, and reports its result to the owners."""
        self._make_fifo(computation)
        computation.task = computation.kill = None
        self._slots.running.discard(computation)
        self._metrics.in_flight(len(self._slots.running))
        owners = list(computation.owners)
        if not owners:
            self._count_cancelled(computation)
            self._pause_refill()
        elif task.cancelled() and computation.requeued and not self._closed:
            self._queue.requeue(computation.arrival, computation)
            owners = []
        else:
            self._forget(computation)
            if task.cancelled():  # not by us: the loop is being shut down, so nothing is reported
                self._count_cancelled(computation)
                owners = []
        self._fill()
        if owners:
            self._report(computation.work, owners, task)

    def _report(self, work: Work, owners: list[Hashable], task: asyncio.Task[Any]) -> None:
        error = task.exception()
        self._metrics.count(work.purpose, "completed" if error is None else "failed")
        if error is not None:
            log.info("computation failed", purpose=work.purpose, input_hash=work.input_hash, error=str(error))
        for owner in owners:
            self._on_done(owner, work.input_hash, task.result() if error is None else error)

    def _forget(self, computation: Computation) -> None:
        del self._by_hash[computation.work.input_hash]
        for owner in computation.owners:
            del self._by_owner[owner]

    def _count_cancelled(self, computation: Computation) -> None:
        self._metrics.count(computation.work.purpose, "cancelled")
        cancelled = computation.cancelled
        if cancelled is None or cancelled.committed_at is None:
            return
        gone_at = self._clock.now()
        took_s = (gone_at - cancelled.committed_at).total_seconds()
        self._metrics.cancel_seconds(took_s)
        if took_s > LATE_S:
            log.info(
                "computation was cancelled late",
                input_hash=computation.work.input_hash,
                took_ms=round(1000 * took_s),
                commit_to_known_ms=round(1000 * (cancelled.known_at - cancelled.committed_at).total_seconds()),
                known_to_gone_ms=round(1000 * (gone_at - cancelled.known_at).total_seconds()),
                loop_lag_ms=round(1000 * self._loop_lag_s()),
            )
