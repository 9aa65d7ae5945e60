"""What a reconcile loop is given: a reconciler, limits and counters."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from controller.runtime.outcome import Backoff, Outcome
from controller.runtime.queue import K


class Reconciler(Protocol[K]):
    """One kind's observe → decide → apply."""

    kind: str

    async def step(self, keys: Sequence[K]) -> Mapping[K, Outcome]:
        """Bring `keys` one step closer to the wanted state; return an outcome for each of them.

        Usually one key, under load many, so that reads and writes are set-based. An exception counts for all keys of
        the call; the loop then calls again key by key.
        """

    async def list_keys(self) -> Collection[K]:
        """Return every existing key, for the resync."""


class LoopMetrics(Protocol):
    """Counters of the loop."""

    def observed(self, kind: str, outcome: str, seconds: float) -> None:
        """One key got `outcome` from a step that took `seconds`."""

    def depth(self, kind: str, n: int) -> None:
        """`n` keys of `kind` are ready and wait for a worker."""


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """The loop's limits; times in seconds.

    Attributes:
        workers: concurrent steps.
        batch_size: most keys per step.
        step_timeout_s: deadline of a step, of listing keys for a resync, and of writing a condition.
        resync_s: every key is enqueued about this often (jittered by a tenth).
        backoff: delays after retryable failures.
        quarantine_after: failures in a row after which a key is retried only every `quarantine_s`.
        quarantine_s: delay of a quarantined key; a hint ends it at once.
        stale_at_once: stale outcomes in a row that are retried without a delay.
        max_keys: bound on distinct keys in the queue.
    """

    workers: int = 4
    batch_size: int = 256
    step_timeout_s: float = 30.0
    resync_s: float = 60.0
    backoff: Backoff = field(default_factory=lambda: Backoff(base_s=0.5, max_s=60.0))
    quarantine_after: int = 10
    quarantine_s: float = 300.0
    stale_at_once: int = 3
    max_keys: int = 1_000_000
