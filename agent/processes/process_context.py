"""What all processes of one agent share."""

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
from agent.processes.needed_paths import PathLooks
from agent.processes.ports import PortAllocator
from agent.processes.probe import Prober
from agent.state.journal import Journal
from agent.state.process_records import ProcessKey, ProcessRecord


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """The agent around a process.

    `report` queues a report. `gpus_listing` returns the GPUs on which the driver last listed a process.
    `allotting` is held while an instance gets its account. `looks` examines what an engine's account gets to.
    `engine_environment` is the setting of that name.
    """

    journal: Journal
    folders: InstanceFolders
    ports: PortAllocator
    prober: Prober
    in_flight: InFlightRequests
    clock: Clock
    boot_id: str
    cgroups: Cgroups
    accounts: EngineAccounts
    allotting: asyncio.Lock
    report: Callable[[ProcessRecord], None]
    inventory: InventoryWatch
    gpus_listing: Callable[[ProcessKey], tuple[str, ...]]
    activity: EngineActivity
    fetches: Fetches
    containers: ContainerRuntime
    looks: PathLooks = field(default_factory=PathLooks)
    engine_environment: tuple[str, ...] = ()
