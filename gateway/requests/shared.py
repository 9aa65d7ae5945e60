"""The parts of a gateway process that all requests to models share."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from controller.live.key_ring import KeyRing
from gateway.bodies.long_bodies import LongBodies
from gateway.errors import GatewayError
from gateway.queueing.queues import Queues
from gateway.quotas.quota_client import QuotaClient
from gateway.reporting.request_metrics import RequestMetrics
from gateway.reporting.revision_outcomes import RevisionOutcomes
from gateway.requests.crash_watch import CrashWatch
from gateway.routing.live_routes import LiveRoutes
from http1.bodies import Bodies
from http1.protocol.client import Pool

if TYPE_CHECKING:
    from gateway.requests.request import Request


@dataclass(frozen=True, slots=True)
class Shared:
    """The parts.

    Attributes:
        pool: connections to the agents.
        bodies: bounds the bytes of bodies in flight.
        failed: logs a request that ended with an error of ours: the error, its path and its id.
        under_way: the requests that are not over.
        outcomes: counts how requests end at revisions while one is rolled out.
        crashes: requests that crash engines.
        loop: runs the requests. To get the running loop is a system call each time.
    """

    keys: KeyRing
    routes: LiveRoutes
    pool: Pool
    bodies: Bodies
    queues: Queues
    quotas: QuotaClient
    metrics: RequestMetrics
    failed: Callable[[GatewayError, bytes, str], None]
    under_way: "set[Request]" = field(default_factory=set)
    long_bodies: LongBodies = field(default_factory=LongBodies)
    outcomes: RevisionOutcomes = field(default_factory=RevisionOutcomes)
    crashes: CrashWatch = field(default_factory=CrashWatch)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
