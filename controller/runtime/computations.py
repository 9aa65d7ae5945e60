"""Cancellable long work: shared between those who ask for the same, run in killable children, fair to the quick ones.

Knows neither what is computed nor for what; who asked, and whether the result still counts, is the caller's to know.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Hashable
from datetime import datetime
from functools import partial
from itertools import count
from typing import Any, Literal, Protocol, TypeAlias

import structlog

from controller.runtime.child import run_child
from controller.runtime.clock import Clock
from controller.runtime.outcome import RetryableError
from controller.runtime.slots import Computation, Lane, Slots, Work
from controller.runtime.tasks import end_tasks
from controller.runtime.waiting_line import WaitingLine

log = structlog.get_logger(__name__)

EXPRESS_SLICE_S = 0.75
# Cancels come in bursts, and those next in line are likely to be cancelled next: in a storm of deletes, a new child
# for each of them at once cost the loop more than all the rest.
REFILL_PAUSE_S = 0.1
_CLOSE_LIMIT_S = 15.0

CountOutcome: TypeAlias = Literal["started", "completed", "cancelled", "failed"]
OnDone: TypeAlias = Callable[[Hashable, str, Any], None]
Runner: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]


class ComputationMetrics(Protocol):
    """What is counted; at rest started equals completed + cancelled + failed."""

    def in_flight(self, n: int) -> None:
        """`n` children exist now."""

    def count(self, purpose: str, outcome: CountOutcome) -> None:
        """One computation was admitted (started) or has ended."""

    def cancel_seconds(self, seconds: float) -> None:
        """A cancelled computation was gone `seconds` after the commit that made it needless."""


class Computations:
    """Runs computations for owners, each in a child, at most `pool_size` at once.

    Slots but one go by order of arrival. The remaining one is the express lane: it takes the newest that was never
    tried and gives it a slice of time; one that needs longer while others were not tried yet is killed and goes back to
    its own place in the order. So one quick computation behind a hundred slow ones is done within seconds.

    All methods are called from the loop's thread.

    Args:
        on_done: `(owner, input_hash, result or exception)`, called once for every owner that still waits. An exception
            has `retryable`, as ChildFailure has. It must not raise, nor start or cancel anything itself.
        clock: for measuring cancels.
        metrics: what is counted.
        pool_size: children at once; by default twice the cores that we may use.
        max_waiting: bound on those that wait for a slot; beyond it `on_done` gets a RetryableError at once.
        slice_s: the express lane's slice, in seconds.
        refill_pause_s: how long the slots of cancelled ones stay empty, in seconds.
        runner: runs one computation until it is done or cancelled; called as `run_child` is.
    """

    def __init__(
        self,
        on_done: OnDone,
        *,
        clock: Clock,
        metrics: ComputationMetrics,
        pool_size: int | None = None,
        max_waiting: int = 100_000,
        slice_s: float = EXPRESS_SLICE_S,
        refill_pause_s: float = REFILL_PAUSE_S,
        runner: Runner = run_child,
    ) -> None:
        size = 2 * len(os.sched_getaffinity(0)) if pool_size is None else pool_size
        if size < 1:
            raise ValueError(f"pool_size must be at least 1, got {size}")
        self._on_done = on_done
        self._clock = clock
        self._metrics = metrics
        self._max_waiting = max_waiting
        self._slice_s = slice_s
        self._refill_pause_s = refill_pause_s
        self._pause: asyncio.TimerHandle | None = None
        self._runner = runner
        self._arrivals = count()
        self._slots = Slots(size)
        self._line: WaitingLine[Computation] = WaitingLine()
        self._by_hash: dict[str, Computation] = {}
        self._by_owner: dict[Hashable, Computation] = {}
        self._closed = False

    @property
    def in_flight(self) -> int:
        """How many children exist, those being killed included."""
        return len(self._slots.held)

    @property
    def waiting(self) -> int:
        """How many computations wait for a slot."""
        return len(self._line)

    def start(self, owner: Hashable, work: Work) -> None:
        """Have `work` computed for `owner`; nothing happens if that is so already.

        An owner has one computation: another one of its own is cancelled. `on_done` is called within this call, with a
        RetryableError, if too many wait already or `aclose` was called.
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
            self._line.join(computation.arrival, computation)
            self._metrics.count(work.purpose, "started")
        computation.owners[owner] = None
        self._by_owner[owner] = computation
        self._fill()

    def cancel(self, owner: Hashable, *, committed_at: datetime | None = None) -> None:
        """Drop `owner`'s wish; the last owner's cancel kills the child. Nothing happens if it has no computation.

        Args:
            owner: as given to `start`.
            committed_at: when the change that made it needless was committed, for the metric.
        """
        computation = self._by_owner.pop(owner, None)
        if computation is None:
            return
        del computation.owners[owner]
        if computation.owners:
            return
        # From here on the same hash is a new computation: this one must not be joined any more.
        del self._by_hash[computation.work.input_hash]
        computation.committed_at = committed_at
        if computation.task is None:
            self._line.leave(computation.arrival)
            self._count_cancelled(computation)
        else:
            computation.task.cancel()

    async def aclose(self) -> None:
        """Cancel everything and wait until all children are gone; `on_done` is not called."""
        self._closed = True
        for owner in list(self._by_owner):
            self.cancel(owner)
        await end_tasks([held.task for held in self._slots.held if held.task is not None], limit_s=_CLOSE_LIMIT_S)
        # The tasks' callbacks, which count, run one turn of the loop after the tasks themselves.
        await asyncio.sleep(0)
        if self._pause is not None:
            self._pause.cancel()

    def _refusal(self) -> RetryableError | None:
        if self._closed:
            return RetryableError("computations are closed: the controller is stopping")
        if len(self._line) >= self._max_waiting:
            return RetryableError(f"{self._max_waiting} computations wait already, which is the most that are taken")
        return None

    def _fill(self) -> None:
        """Give free slots to those who wait, and make room in the express lane if its holder has had its slice."""
        if self._pause is not None:
            return
        while len(self._line) and (lane := self._slots.free_lane()) is not None:
            oldest = self._line.oldest()
            express = self._slots.express
            if lane is Lane.ORDINARY:
                if express is not None and not express.put_back and oldest is not None and express.arrival < oldest:
                    # It would be next anyway: it keeps its child, and the express lane becomes free instead.
                    self._leave_express(express)
                    continue
                arrival = oldest
            else:
                newest = self._line.newest_untried()
                arrival = oldest if newest is None else newest
            if arrival is not None:
                self._launch(self._line[arrival], lane)
        express = self._slots.express
        if express is not None and express.slice_over and self._line.untried and not express.put_back:
            express.put_back = True
            if express.task is not None:
                express.task.cancel()

    def _launch(self, computation: Computation, lane: Lane) -> None:
        self._line.leave(computation.arrival)
        work = computation.work
        computation.lane = lane
        computation.put_back = computation.slice_over = False
        computation.task = asyncio.create_task(
            self._runner(work.target, work.payload, deadline_s=work.deadline_s, memory_bytes=work.memory_bytes),
            name=f"computation-{work.purpose}-{work.input_hash}",
        )
        if lane is Lane.EXPRESS:
            loop = asyncio.get_running_loop()
            computation.slice_timer = loop.call_later(self._slice_s, self._end_slice, computation)
        self._slots.held.add(computation)
        self._slots.express_turn = lane is Lane.ORDINARY
        # A callback, because a task that is cancelled before its first step never runs a line of its own.
        computation.task.add_done_callback(partial(self._ended, computation))
        self._metrics.in_flight(len(self._slots.held))

    def _pause_refill(self) -> None:
        if self._pause is None and len(self._line):
            self._pause = asyncio.get_running_loop().call_later(self._refill_pause_s, self._end_pause)

    def _end_pause(self) -> None:
        self._pause = None
        self._fill()

    def _end_slice(self, computation: Computation) -> None:
        computation.slice_over = True
        self._fill()

    @staticmethod
    def _leave_express(computation: Computation) -> None:
        computation.lane = Lane.ORDINARY
        if computation.slice_timer is not None:
            computation.slice_timer.cancel()
            computation.slice_timer = None

    def _ended(self, computation: Computation, task: asyncio.Task[Any]) -> None:
        """A child is gone: give its slot away and tell those who wait what came of it."""
        self._leave_express(computation)
        computation.task = None
        self._slots.held.discard(computation)
        self._metrics.in_flight(len(self._slots.held))
        owners = list(computation.owners)
        if not owners:
            self._count_cancelled(computation)
            self._pause_refill()
        elif task.cancelled() and computation.put_back and not self._closed:
            self._line.put_back(computation.arrival, computation)
            owners = []
        else:
            self._forget(computation)
            if task.cancelled():  # by somebody else: the loop itself is being shut down, there is nobody to tell
                self._count_cancelled(computation)
                owners = []
        self._fill()
        if owners:
            self._tell(computation.work, owners, task)

    def _tell(self, work: Work, owners: list[Hashable], task: asyncio.Task[Any]) -> None:
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
        if computation.committed_at is not None:
            self._metrics.cancel_seconds((self._clock.now() - computation.committed_at).total_seconds())
