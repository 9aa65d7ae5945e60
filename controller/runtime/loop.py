"""The reconcile loop: due keys → a short step under a deadline → a typed outcome → when to look again.

Knows neither what a key names nor what a step does. It is the one place in the controller that catches Exception.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

import structlog

from controller.runtime.clock import Clock
from controller.runtime.database import TRANSIENT_ERRORS
from controller.runtime.outcome import (
    Done,
    Outcome,
    Requeue,
    Retry,
    RetryableError,
    StaleError,
    Terminal,
    TerminalError,
)
from controller.runtime.queue import K, KeyedQueue
from controller.runtime.reconciler import LoopMetrics, LoopSettings, Reconciler

log = structlog.get_logger(__name__)

_PASSING: tuple[type[Exception], ...] = (RetryableError, *TRANSIENT_ERRORS)


@dataclass(slots=True)
class _Trouble:
    """What went wrong with a key lately; forgotten when a step answers Done or Again."""

    attempts: int = 0
    stale: int = 0
    parked: bool = False
    announced: bool = False


# The stale answer is the loop's own: reconcilers say it by StaleError, so that a lost guard cannot be overlooked.
@dataclass(frozen=True, slots=True)
class _Stale:
    reason: str


class ReconcileLoop(Generic[K]):
    """Runs one reconciler over its keys. Used once: after `run` has ended, make a new one.

    Args:
        reconciler: what to do.
        clock: time.
        rng: chance, for jitter.
        metrics: what is counted.
        on_quarantine: `(key, error, attempts)`, called once when a key is quarantined, to make it visible.
        on_terminal: `(key, error)`, called at each terminal answer, to make it visible.
        settings: limits.
    """

    def __init__(
        self,
        reconciler: Reconciler[K],
        *,
        clock: Clock,
        rng: random.Random,
        metrics: LoopMetrics,
        on_quarantine: Callable[[K, str, int], Awaitable[None]],
        on_terminal: Callable[[K, str], Awaitable[None]],
        settings: LoopSettings | None = None,
    ) -> None:
        self._reconciler = reconciler
        self._kind = reconciler.kind
        self._clock = clock
        self._rng = rng
        self._metrics = metrics
        self._on_quarantine = on_quarantine
        self._on_terminal = on_terminal
        self._settings = settings or LoopSettings()
        self._queue: KeyedQueue[K] = KeyedQueue(max_keys=self._settings.max_keys)
        self._trouble: dict[K, _Trouble] = {}
        self._room = asyncio.Event()
        self._resync_now = asyncio.Event()
        self._resync_all = True

    def add(self, key: K, *, after_s: float = 0.0, urgent: bool = False) -> None:
        """Hint that `key` may need a step, in `after_s` seconds at the latest; ends its quarantine's wait, too."""
        self._queue.add(key, after_s=after_s, urgent=urgent)

    def add_all(self) -> None:
        """Hint that anything may have changed: everything that exists is enqueued, failed and quarantined keys too."""
        self._resync_all = True
        self._resync_now.set()

    @property
    def depth(self) -> int:
        """How many keys are ready and wait for a worker."""
        return self._queue.depth

    async def run(self) -> None:
        """Enqueue everything, then work until cancelled; ends with all its tasks ended."""
        try:
            async with asyncio.TaskGroup() as group:
                for n in range(self._settings.workers):
                    group.create_task(self._work(), name=f"reconcile-{self._kind}-{n}")
                group.create_task(self._resync_for_ever(), name=f"resync-{self._kind}")
        finally:
            self._queue.close()

    async def _work(self) -> None:
        while True:
            keys = await self._queue.take(self._settings.batch_size)
            self._metrics.depth(self._kind, self._queue.depth)
            left = set(keys)
            try:
                if len(keys) == 1 or not await self._reconcile(keys, left, last_resort=False):
                    # A batch that fails is repeated key by key, so that a poisoned key hurts only itself.
                    for key in keys:
                        await self._reconcile([key], left, last_resort=True)
            finally:
                for key in left:
                    self._queue.done(key)
            if len(self._queue) <= self._queue.max_keys // 2:
                self._room.set()
                if self._queue.overflow:
                    self.add_all()

    async def _reconcile(self, keys: Sequence[K], left: set[K], *, last_resort: bool) -> bool:
        """Step `keys` and act on the answers, taking each answered key out of `left`; False: the batch failed."""
        reconcile_id = f"{self._rng.getrandbits(48):012x}"
        with structlog.contextvars.bound_contextvars(kind=self._kind, reconcile_id=reconcile_id):
            began = self._clock.monotonic()
            answers = await self._step(keys, last_resort=last_resort)
            if answers is None:
                return False
            seconds = self._clock.monotonic() - began
            for key in keys:
                answer = answers.get(key) or Retry("the step gave no answer for this key", "NoAnswer")
                self._metrics.observed(self._kind, type(answer).__name__.strip("_").lower(), seconds)
                await self._act(key, answer)
                left.discard(key)
                self._queue.done(key)
        return True

    async def _step(self, keys: Sequence[K], *, last_resort: bool) -> Mapping[K, Outcome | _Stale] | None:
        """Run one step under its deadline; None when it failed as a whole and may be repeated key by key."""
        deadline = asyncio.timeout(self._settings.step_timeout_s)
        failure: Outcome | _Stale
        try:
            async with deadline:
                return await self._reconciler.step(keys)
        except StaleError as error:
            failure = _Stale(str(error))
        except TerminalError as error:
            failure = Terminal(_sentence(error))
        except _PASSING as error:
            failure = Retry(_sentence(error), type(error).__name__)
            if deadline.expired():
                failure = Retry(f"the step took longer than {self._settings.step_timeout_s:g} s", "StepTimeout")
        except Exception as error:
            # Nobody classified it: most likely our own mistake, so the trace is wanted.
            log.exception("reconcile step failed unexpectedly", keys=len(keys))
            failure = Retry(_sentence(error), type(error).__name__)
        return dict.fromkeys(keys, failure) if last_resort else None

    async def _act(self, key: K, answer: Outcome | _Stale) -> None:
        """Decide when `key` runs again, while it is still held, so that a hint that came meanwhile wins."""
        match answer:
            case Done():
                self._trouble.pop(key, None)
            case Requeue(after_s):
                self._trouble.pop(key, None)
                self._queue.add(key, after_s=after_s)
            case _Stale(reason):
                self._repeat_stale(key, reason)
            case Retry(error, cls):
                await self._retry(key, error, cls)
            case Terminal(error):
                log.warning("reconcile ended in a terminal error", key=key, error=error)
                self._trouble[key] = _Trouble(parked=True)
                await self._tell(self._on_terminal(key, error), key)

    def _repeat_stale(self, key: K, reason: str) -> None:
        trouble = self._trouble.setdefault(key, _Trouble())
        trouble.stale += 1
        beyond = trouble.stale - self._settings.stale_at_once
        delay_s = self._settings.backoff.delay_s(beyond, self._rng) if beyond > 0 else 0.0
        log.debug("reconcile was stale", key=key, reason=reason, attempt=trouble.stale)
        self._queue.add(key, after_s=delay_s)

    async def _retry(self, key: K, error: str, cls: str) -> None:
        trouble = self._trouble.setdefault(key, _Trouble())
        trouble.attempts += 1
        trouble.parked = trouble.attempts >= self._settings.quarantine_after
        if not trouble.parked:
            delay_s = self._settings.backoff.delay_s(trouble.attempts, self._rng)
        else:
            delay_s = self._settings.quarantine_s * self._rng.uniform(0.9, 1.1)
        log.warning(
            "reconcile failed", key=key, error=error, cls=cls, attempt=trouble.attempts, retry_s=round(delay_s, 3)
        )
        self._queue.add(key, after_s=delay_s)
        if trouble.parked and not trouble.announced:
            log.error("key quarantined", key=key, error=error, attempt=trouble.attempts)
            told = await self._tell(self._on_quarantine(key, error, trouble.attempts), key)
            trouble.announced = told

    async def _tell(self, telling: Awaitable[None], key: K) -> bool:
        """Write a visible condition; a failure of that must not take the worker down, it is told again next time."""
        try:
            async with asyncio.timeout(self._settings.step_timeout_s):
                await telling
        except Exception:
            log.exception("writing a condition failed", key=key)
            return False
        return True

    async def _resync_for_ever(self) -> None:
        while True:
            wait_s = self._settings.resync_s * self._rng.uniform(0.9, 1.1)
            if not await self._resync():
                wait_s = min(wait_s, self._settings.backoff.delay_s(3, self._rng) + 0.1)
            try:
                async with asyncio.timeout(wait_s):
                    await self._resync_now.wait()
            except TimeoutError:
                continue

    async def _resync(self) -> bool:
        """Enqueue every key that exists; the periodic one leaves those alone whose wait after a failure runs."""
        everything = self._resync_all
        self._resync_all = False
        self._resync_now.clear()
        try:
            async with asyncio.timeout(self._settings.step_timeout_s):
                keys = list(await self._reconciler.list_keys())
        except _PASSING as error:
            log.warning("listing keys for a resync failed", kind=self._kind, error=_sentence(error))
            return self._list_again(everything=everything)
        except Exception:
            log.exception("listing keys for a resync failed unexpectedly", kind=self._kind)
            return self._list_again(everything=everything)
        self._queue.overflow = False
        for key in keys:
            while len(self._queue) >= self._queue.max_keys:
                # More than fits: the workers make room. Adding all the same would overflow, and listing begin anew.
                self._room.clear()
                await self._room.wait()
            if everything or key not in self._trouble:
                self._queue.add(key)
        self._forget(set(keys))
        self._metrics.depth(self._kind, self._queue.depth)
        return True

    def _list_again(self, *, everything: bool) -> bool:
        self._resync_all = self._resync_all or everything
        return False

    def _forget(self, existing: set[K]) -> None:
        """Drop the memory of parked keys that are gone; those that still wait for a retry end by their own Done."""
        for key in [key for key, trouble in self._trouble.items() if trouble.parked and key not in existing]:
            del self._trouble[key]


def _sentence(error: Exception) -> str:
    return str(error) or type(error).__name__
