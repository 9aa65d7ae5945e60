"""What all processes of one agent share."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from agent.clock import Clock
from agent.containers.runtime import ContainerRuntime
from agent.engine_proxy.in_flight import InFlightRequests
from agent.model_cache.fetches import Fetches
from agent.processes.cgroups import Cgroups
from agent.processes.engine_accounts import EngineAccounts
from agent.processes.engine_activity import EngineSigns
from agent.processes.folders import InstanceFolders
from agent.processes.needed_paths import PathLooks
from agent.processes.ports import PortAllocator
from agent.processes.probe import Prober
from agent.state.journal import Journal
from agent.state.process_records import ProcessKey, ProcessRecord


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """The agent around a process.

    `report` queues a report, `gpu_index` returns a GPU's present index, and `gpus_listing` the GPUs on which the driver
    listed a process at the newest reading. `allotting` is held while an instance gets its account. `note_missing`
    takes the name of a program that a start did not find. `looks` examines what an engine's account gets to.
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
    gpu_index: Callable[[str], int | None]
    gpus_listing: Callable[[ProcessKey], tuple[str, ...]]
    signs: EngineSigns
    fetches: Fetches
    containers: ContainerRuntime
    looks: PathLooks = field(default_factory=PathLooks)
    note_missing: Callable[[str], None] = lambda _program: None
    engine_environment: tuple[str, ...] = ()
