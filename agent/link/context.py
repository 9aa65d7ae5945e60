"""The agent's parts that the link uses."""

from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from agent.clock import Clock
from agent.host_inventory.inventory import InventoryWatch
from agent.link.controller_heartbeat import ControllerHeartbeat
from agent.link.controllers import Controllers
from agent.link.send_queue import SendQueue
from agent.processes.supervisor import Supervisor
from agent.sampling.backlog import Backlog
from agent.sampling.sampler import Sampler
from agent.settings import AgentSettings
from agent.state.journal import Journal
from schemas.process_figures import GcWatch
from schemas.wire import SPOKEN, Protocols


@dataclass(frozen=True, slots=True)
class LinkContext:
    """One agent, as the link knows it."""

    settings: AgentSettings
    name: str  # requested at the join
    boot_id: str
    proxy_port: int
    http: aiohttp.ClientSession
    journal: Journal
    send_queue: SendQueue
    supervisor: Supervisor
    inventory: InventoryWatch
    sampler: Sampler
    backlog: Backlog
    clock: Clock
    heartbeat: ControllerHeartbeat
    controllers: Controllers
    collections: GcWatch
    certificate: Callable[[], str] = lambda: ""  # SHA-256 of the proxy's in hex digits; empty: no TLS
    spoken: Protocols = SPOKEN  # offered protocols
