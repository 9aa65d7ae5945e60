"""An engine's activity, observed at the proxy, in the engine's counters, and on its GPUs."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

from agent.decide.stalls import Evidence
from agent.engine_proxy.proxy import Proxy
from agent.host_inventory.inventory import InventoryWatch
from agent.sampling.request_counts import RequestCounter
from agent.state.process_records import ProcessRecord


@dataclass(frozen=True, slots=True)
class EngineActivity:
    """The sources of observations."""

    proxy: Proxy
    counter: RequestCounter
    inventory: InventoryWatch

    def forget(self, instance: str) -> None:
        """A new process of the instance starts: no request waits for it yet."""
        self.proxy.forget_waits(instance)

    def probing(self, record: ProcessRecord) -> AbstractContextManager[None]:
        """Wraps a request of the agent itself, which does not count."""
        return self.counter.probing(record.key)

    def of(self, record: ProcessRecord) -> Evidence:
        waits, answered = self.proxy.waits(record.instance)
        idle = [self.inventory.idle_for(claim.device) for claim in record.claims]
        known = [seconds for seconds in idle if seconds is not None]
        return Evidence(
            waits=waits,
            answered=answered,
            counters_still=self.counter.tokens_still(record.key),
            counters_moved=self.counter.tokens_moved(record.key),
            gpus_idle=min(known) if known and len(known) == len(idle) else None,
        )
