"""What the parts of the link share."""

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
    """The agent's parts that the link uses.

    Attributes:
        name: the worker's name that the agent asks for at the join.
        controllers: that it may connect to.
        certificate: SHA-256 of what its proxy shows, in hexadecimal digits; empty: it speaks no TLS.
        collections: what its garbage collector did.
        spoken: the protocols that it offers.
    """

    settings: AgentSettings
    name: str
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
    certificate: Callable[[], str] = lambda: ""
    spoken: Protocols = SPOKEN
