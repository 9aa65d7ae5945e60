"""What this agent sees of an engine's work: at its proxy, in the engine's counters, and on its GPUs."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from agent.decide.stalls import Evidence, Wait
from agent.state.process_records import ProcessKey, ProcessRecord


@dataclass(frozen=True, slots=True)
class EngineSigns:
    """Where the signs come from.

    `waits` and `forget` are of the proxy, by instance. `tokens_still`, `tokens_moved` and `probing` are of what counts
    requests, by process. `gpu_idle` is of a GPU, by UUID.
    """

    waits: Callable[[str], tuple[list[Wait], float | None]]
    forget: Callable[[str], None]
    tokens_still: Callable[[ProcessKey], float | None]
    tokens_moved: Callable[[ProcessKey], float | None]
    probing: Callable[[ProcessKey], AbstractContextManager[None]]
    gpu_idle: Callable[[str], float | None]

    def of(self, record: ProcessRecord) -> Evidence:
        """What is known of a process now."""
        waits, answered = self.waits(record.instance)
        idle = [self.gpu_idle(claim.device) for claim in record.claims]
        known = [seconds for seconds in idle if seconds is not None]
        return Evidence(
            waits=waits,
            answered=answered,
            counters_still=self.tokens_still(record.key),
            counters_moved=self.tokens_moved(record.key),
            gpus_idle=min(known) if known and len(known) == len(idle) else None,
        )
