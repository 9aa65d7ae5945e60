"""The agent's parts that all processes share."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from agent.clock import Clock
from agent.containers.runtime import ContainerRuntime
from agent.engine_proxy.in_flight import InFlightRequests
from agent.host_inventory.inventory import InventoryWatch
from agent.model_cache.fetches import Fetches
from agent.processes.cgroups import Cgroups
from agent.processes.engine_accounts import EngineAccounts
from agent.processes.engine_activity import EngineActivity
from agent.processes.folders import InstanceFolders
from agent.processes.needed_paths import PathChecks
from agent.processes.ports import PortAllocator
from agent.processes.probe import Prober
from agent.state.journal import Journal
from agent.state.process_records import ProcessKey, ProcessRecord


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """One agent, as its processes know it."""

    journal: Journal
    folders: InstanceFolders
    ports: PortAllocator
    prober: Prober
    in_flight: InFlightRequests
    clock: Clock
    boot_id: str
    cgroups: Cgroups
    accounts: EngineAccounts
    allotting: asyncio.Lock  # held while an instance gets its account
    report: Callable[[ProcessRecord], None]  # queues a report
    inventory: InventoryWatch
    gpus_listing: Callable[[ProcessKey], tuple[str, ...]]  # GPUs on which the driver last listed a process
    activity: EngineActivity
    fetches: Fetches
    containers: ContainerRuntime
    path_checks: PathChecks = field(default_factory=PathChecks)
    engine_environment: tuple[str, ...] = ()
