"""A gateway's queues alone, with a clock, a store and requests that tests move by hand."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry

from controller.live.endpoints import Endpoint, Model, Stopped
from gateway.errors import GatewayError
from gateway.queueing.demand import Demand
from gateway.queueing.queue_metrics import QueueMetrics
from gateway.queueing.queues import Queues
from gateway.routing.routing_table import RoutingTable


@dataclass
class World:
    """A gateway without connections: requests take the replica that the table gives them."""

    now: float = 100.0
    woken: int = 0
    requests: "list[Request]" = field(default_factory=list)

    def __post_init__(self) -> None:
        self.table = RoutingTable(lambda: self.now)
        self.demand = Demand(self.now)
        self.registry = CollectorRegistry()
        self.queues = Queues(
            self.table, self.demand, lambda: self.now, woken=self._note, metrics=QueueMetrics(self.registry)
        )

    def _note(self) -> None:
        self.woken += 1

    def route(self, known: Model, endpoints: Iterable[Endpoint] = (), **stopped: Stopped) -> None:
        self.table.update({"m": known}, endpoints, stopped)
        self.queues.routes_changed()

    def come(self, name: str, key: str = "k", **fields: Any) -> "Request":
        self.now += 0.01
        request = Request(self, name, key, arrived=self.now, **fields)
        self.requests.append(request)
        if (known := self.table.model("m")) is not None:
            self.demand.arrived(known.uid, self.now)
        request.go()
        return request

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"gpuward_gateway_{name}", labels)

    def states(self) -> dict[str, str]:
        return {request.request_id: request.state for request in self.requests}


@dataclass(eq=False)
class Request:
    world: World
    request_id: str
    key: str
    arrived: float
    role: str = "inference"
    lane: str = ""
    state: str = ""
    at: Endpoint | None = None
    uid: str = ""

    def go(self) -> None:
        world = self.world
        place = {"": None, "new": 0.0, "old": 1.0}[self.lane]
        lane = world.table.lane("m", b"session", place) if self.lane else ""
        waits = world.queues.must_wait("m", lane)
        self.at = None if waits else world.table.pick("m", place=place, bound=bool(lane))
        if self.at is not None:
            self.state = self.at.instance
            world.table.enter(self.at)
            known = world.table.model("m")
            self.uid = known.uid if known is not None else ""
            world.demand.entered(self.uid, "m", self.key, world.now)
        elif (error := world.queues.join(self, "m", [], lane)) is not None:
            self.fail(error)
        else:
            self.state = "waits"

    def fail(self, error: GatewayError) -> None:
        self.world.queues.leave(self, "m", refused=True)
        self.state = error.code
        self.error = error

    def end(self) -> None:
        assert self.at is not None
        self.world.table.leave(self.at)
        self.state = "done"
        self.world.demand.left(self.uid, "m", self.key, self.world.now)
        self.world.queues.freed("m", self.key)

    def leave(self) -> None:
        self.world.queues.leave(self, "m", refused=False)
        self.state = "left"
