"""The reconcile loop: due keys → a short step under a deadline → a typed outcome → when the key runs again.

It knows neither what a key names nor what a step does. Only this module of the controller catches Exception.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol

import structlog

from controller.domain.effects import StaleError
from controller.runtime.clock import Clock
from controller.runtime.database import TRANSIENT_ERRORS, is_database_trouble, is_disk_full
from controller.runtime.metrics import Metrics
from controller.runtime.outcome import Backoff, Done, Outcome, Requeue, Retry, RetryableError, Terminal, TerminalError
from controller.runtime.queue import K, KeyedQueue

log = structlog.get_logger(__name__)
_TRANSIENT: tuple[type[Exception], ...] = (RetryableError, *TRANSIENT_ERRORS)


class Reconciler(Protocol[K]):
    """One kind's observe → decide → apply."""

    kind: str

    async def step(self, keys: Sequence[K]) -> Mapping[K, Outcome]:
        """Brings `keys` one step closer to the wanted state; returns an outcome for each of them.

        Usually one key, under load many, so that reads and writes are set-based. An exception counts for all keys of
        the call; the loop then calls again key by key.
        """

    async def list_keys(self) -> Collection[K]:
        """Returns every existing key, for the resync."""


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """The loop's limits."""

    workers: int = 4  # concurrent steps
    batch_size: int = 256  # keys per step
    step_timeout_s: float = 30.0  # of a step, of listing keys for a resync, and of writing a condition
    resync_s: float = 60.0  # between enqueueing every key, jittered by a tenth
    backoff: Backoff = field(default_factory=lambda: Backoff(base_s=0.5, max_s=60.0))  # after retryable failures
    quarantine_after: int = 10  # failures in a row
    quarantine_s: float = 300.0  # between retries of a quarantined key; a hint ends the wait at once
    stale_at_once: int = 3  # stale outcomes in a row that are retried without a delay
    max_keys: int = 1_000_000  # distinct keys in the queue


@dataclass(slots=True)
class _Failures:
    """Recent failures of a key; dropped at Done or Requeue."""

    attempts: int = 0
    stale: int = 0
    quarantined: bool = False
    terminal: bool = False
    reported: bool = False


# The stale outcome is the loop's own. Reconcilers raise StaleError, so that a lost guard cannot be overlooked.
@dataclass(frozen=True, slots=True)
class _Stale:
    reason: str


class ReconcileLoop(Generic[K]):
    """Runs one reconciler over its keys. `run` may be called once.

    Args:
        on_quarantine: `(key, error, attempts)`, called once when a key is quarantined; writes a visible condition.
        on_terminal: `(key, error)`, called at each terminal outcome; writes a visible condition.
    """

    def __init__(
        self,
        reconciler: Reconciler[K],
        *,
        clock: Clock,
        rng: random.Random,
        metrics: Metrics,
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
        self._failures: dict[K, _Failures] = {}
        self._has_capacity = asyncio.Event()
        self._resync_now = asyncio.Event()
        self._resync_all = True

    def add(self, key: K, *, after_s: float = 0.0, urgent: bool = False) -> None:
        """Hints that `key` may need a step, in `after_s` seconds at the latest. Also ends a quarantine."""
        self._queue.add(key, after_s=after_s, urgent=urgent)

    def add_all(self) -> None:
        """Hints that anything may have changed: enqueues every existing key, also failed and quarantined keys."""
        self._resync_all = True
        self._resync_now.set()

    @property
    def depth(self) -> int:
        return self._queue.depth

    async def run(self) -> None:
        """Enqueues every key, then works until cancelled. All its tasks have ended when this returns."""
        try:
            async with asyncio.TaskGroup() as group:
                for n in range(self._settings.workers):
                    group.create_task(self._work(), name=f"reconcile-{self._kind}-{n}")
                group.create_task(self._run_resyncs(), name=f"resync-{self._kind}")
        finally:
            self._queue.close()

    async def _work(self) -> None:
        while True:
            keys = await self._queue.take(self._settings.batch_size)
            self._metrics.depth(self._kind, self._queue.depth)
            left = set(keys)
            try:
                if len(keys) == 1 or not await self._reconcile(keys, left, last_resort=False):
                    # A failed batch is repeated key by key, so that one bad key affects only itself.
                    for key in keys:
                        await self._reconcile([key], left, last_resort=True)
            finally:
                for key in left:
                    self._queue.done(key)
            if len(self._queue) <= self._queue.max_keys // 2:
                self._has_capacity.set()
                if self._queue.overflow:
                    self.add_all()

    async def _reconcile(self, keys: Sequence[K], left: set[K], *, last_resort: bool) -> bool:
        """Steps `keys`, acts on their outcomes and removes them from `left`; False: the batch failed."""
        reconcile_id = f"{self._rng.getrandbits(48):012x}"
        with structlog.contextvars.bound_contextvars(kind=self._kind, reconcile_id=reconcile_id):
            started = self._clock.monotonic()
            answers = await self._step(keys, last_resort=last_resort)
            if answers is None:
                return False
            seconds = self._clock.monotonic() - started
            for key in keys:
                answer = answers.get(key) or Retry("the step returned no outcome for this key", "NoAnswer")
                self._metrics.observed(self._kind, type(answer).__name__.strip("_").lower(), seconds)
                await self._act(key, answer)
                left.discard(key)
                self._queue.done(key)
        return True

    async def _step(self, keys: Sequence[K], *, last_resort: bool) -> Mapping[K, Outcome | _Stale] | None:
        """Runs one step under its deadline; None if it failed and may be repeated key by key."""
        deadline = asyncio.timeout(self._settings.step_timeout_s)
        failure: Outcome | _Stale
        try:
            async with deadline:
                return await self._reconciler.step(keys)
        except StaleError as error:
            failure = _Stale(str(error))
        except TerminalError as error:
            failure = Terminal(_sentence(error))
        except _TRANSIENT as error:
            failure = Retry(_sentence(error), type(error).__name__, counts=not is_disk_full(error))
            if deadline.expired():
                failure = Retry(f"the step took longer than {self._settings.step_timeout_s:g} s", "StepTimeout")
        except Exception as error:  # the loop's guard
            if not is_database_trouble(error):
                # Not classified: most likely a bug, so the trace is logged.
                log.exception("reconcile step failed unexpectedly", keys=len(keys))
            failure = Retry(_sentence(error), type(error).__name__)
        return dict.fromkeys(keys, failure) if last_resort else None

    async def _act(self, key: K, answer: Outcome | _Stale) -> None:
        """Decides when `key` runs again, while it is still handed out, so that a hint in the meantime wins."""
        match answer:
            case Done():
                self._failures.pop(key, None)
            case Requeue(after_s):
                self._failures.pop(key, None)
                self._queue.add(key, after_s=after_s)
            case _Stale(reason):
                self._requeue_stale(key, reason)
            case Retry():
                await self._retry(key, answer)
            case Terminal(error):
                log.warning("reconcile failed for good", key=key, error=error)
                self._failures[key] = _Failures(terminal=True)
                await self._report(self._on_terminal(key, error), key)

    def _requeue_stale(self, key: K, reason: str) -> None:
        failures = self._failures.setdefault(key, _Failures())
        failures.stale += 1
        beyond = failures.stale - self._settings.stale_at_once
        delay_s = self._settings.backoff.delay_s(beyond, self._rng) if beyond > 0 else 0.0
        log.debug("reconcile was stale", key=key, reason=reason, attempt=failures.stale)
        self._queue.add(key, after_s=delay_s)

    async def _retry(self, key: K, answer: Retry) -> None:
        error, cls = answer.error, answer.cls
        failures = self._failures.setdefault(key, _Failures())
        if answer.counts or failures.attempts + 1 < self._settings.quarantine_after:
            failures.attempts += 1
        failures.terminal = False
        failures.quarantined = failures.attempts >= self._settings.quarantine_after
        if not failures.quarantined:
            delay_s = self._settings.backoff.delay_s(failures.attempts, self._rng)
        else:
            delay_s = self._settings.quarantine_s * self._rng.uniform(0.9, 1.1)
        log.warning(
            "reconcile failed",
            key=key,
            error=error,
            cls=cls,
            attempt=failures.attempts,
            retry_s=round(delay_s, 3),
        )
        self._queue.add(key, after_s=delay_s)
        if failures.quarantined and not failures.reported:
            log.error("key quarantined", key=key, error=error, attempt=failures.attempts)
            failures.reported = await self._report(self._on_quarantine(key, error, failures.attempts), key)

    async def _report(self, report: Awaitable[None], key: K) -> bool:
        """Writes a visible condition. A failure of that must not end the worker: the next attempt reports again."""
        try:
            async with asyncio.timeout(self._settings.step_timeout_s):
                await report
        except Exception as error:  # noqa: BLE001 - logged, with a trace where it is a bug
            _log_unclassified("writing a condition failed", error, key=key)
            return False
        return True

    async def _run_resyncs(self) -> None:
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
        """Enqueues every existing key; a periodic resync skips keys that are backing off after a failure."""
        everything = self._resync_all
        self._resync_all = False
        self._resync_now.clear()
        try:
            async with asyncio.timeout(self._settings.step_timeout_s):
                keys = list(await self._reconciler.list_keys())
        except _TRANSIENT as error:
            log.warning("listing keys for a resync failed", kind=self._kind, error=_sentence(error))
            return self._relist(everything=everything)
        except Exception as error:  # noqa: BLE001 - logged, with a trace where it is a bug
            _log_unclassified("listing keys for a resync failed", error, kind=self._kind)
            return self._relist(everything=everything)
        self._queue.overflow = False
        for key in keys:
            while len(self._queue) >= self._queue.max_keys:
                # The queue is full: wait for the workers. Adding now would overflow, and the listing would start again.
                self._has_capacity.clear()
                await self._has_capacity.wait()
            if everything or key not in self._failures:
                self._queue.add(key)
        self._forget(set(keys))
        self._metrics.depth(self._kind, self._queue.depth)
        return True

    def _relist(self, *, everything: bool) -> bool:
        self._resync_all = self._resync_all or everything
        return False

    def _forget(self, existing: set[K]) -> None:
        """Drops the failures of deleted keys that no retry would clear; a pending retry ends with its own Done."""
        over = [k for k, one in self._failures.items() if (one.quarantined or one.terminal) and k not in existing]
        for key in over:
            del self._failures[key]


def _log_unclassified(event: str, error: Exception, **fields: object) -> None:
    """Logs a failure; trouble of the database without a trace, since no code is at fault."""
    known = isinstance(error, _TRANSIENT) or is_database_trouble(error)
    log.error(event, error=_sentence(error), exc_info=None if known else error, **fields)


def _sentence(error: Exception) -> str:
    return str(error) or type(error).__name__
