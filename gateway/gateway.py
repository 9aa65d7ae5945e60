"""One gateway: its parts, and in which order they start and end."""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry

from controller.live.change_fanout import ChangeFanout
from controller.live.demand import DemandReports, ReportAnswer
from controller.live.endpoints import Database
from controller.live.key_ring import KeyRing
from controller.live.proxy_keys import NO_PROXY_KEYS, ProxyKeys
from gateway.admission.cors import Cors
from gateway.admission.credentials import may_read
from gateway.admission.router import Own, Router
from gateway.control_plane.reverse_proxy import Controller
from gateway.errors import FailureLog
from gateway.lifecycle.peer_processes import PeerProcesses, Sockets
from gateway.lifecycle.shutdown_limits import Step, each_in_time
from gateway.queueing.demand import Demand
from gateway.queueing.lease_client import LeaseClient
from gateway.queueing.queue_leases import QueueLeases
from gateway.queueing.queue_metrics import QueueMetrics
from gateway.queueing.queues import Queued, Queues
from gateway.quotas.quota_client import QuotaClient
from gateway.reporting.health import HEALTH, METRICS, READY, Health, alone
from gateway.reporting.metrics import GatewayMetrics, LoopLag
from gateway.reporting.reporter import Reporter
from gateway.reporting.request_metrics import RequestMetrics
from gateway.requests.crash_watch import CrashWatch
from gateway.requests.refusals import not_served
from gateway.requests.request import Request
from gateway.requests.shared import Shared
from gateway.requests.states import CLIENT_STALL_S, UPLOAD_LIMIT_S
from gateway.routing.live_routes import LiveRoutes
from http1.bodies import Bodies
from http1.daemon.open_files import connection_bound, raise_file_limit
from http1.daemon.sweeper import Sweeper
from http1.forwarded import TrustedProxies
from http1.protocol.client import Pool
from http1.protocol.connecting import Address, notice_gone_hosts
from http1.protocol.connection_admission import ConnectionAdmission
from http1.protocol.connection_rules import Limits, Refusal, limits_for
from http1.protocol.server import Server
from http1.protocol.server_connection import Service
from http1.protocol.states import Progress
from schemas.process_figures import GcWatch, read_figures
from schemas.process_metrics import ProcessMetrics

if TYPE_CHECKING:  # slow to import
    from http1.tls.certificate import ServedCertificate

_SWEEP_S: Final = 0.1  # how late a deadline of a request may be
_POOL_EVERY: Final = 10  # sweeps
_STRANGERS_SHARE: Final = 2  # of all connections: requests without a key that have one to the controller, too
_REFUSE_AFTER_S: Final = 5.0  # load balancers see `/readyz` first
_CLOSE_S: Final = 1.0
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Options:
    """How one process of a gateway serves.

    Attributes:
        name: the name by which the leader and operators know it; empty: the host and this process.
        secret: proves to the controller that this is a gateway; empty on a Unix socket.
        others: addresses of further controllers, used where the first does not answer.
        proxies: those in front of it whose headers count.
        cors: the origins whose pages may read answers of models.
        hsts_s: seconds for which browsers shall use only TLS; 0: no such header.
        limits: bounds of connections; None: those for this process's limit of files.
        client_stall_s: seconds after which a client that reads nothing is cut.
        certificate: what its port serves TLS with; None: without TLS.
        number: this process's number, from 0.
        sockets: those by which the processes reach each other; None if it is the only one.
    """

    name: str = ""
    secret: str = ""
    others: Sequence[Address] = ()
    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    cors: Cors | None = None
    hsts_s: float = 0.0
    limits: Limits | None = None
    client_stall_s: float = CLIENT_STALL_S
    certificate: "ServedCertificate | None" = None
    number: int = 0
    sockets: Sockets | None = None


_DEFAULTS: Final = Options()


class Gateway:
    """Answers for models and passes other requests on, from `start` to `close`. Made in the loop that serves.

    Args:
        database: read by its own tasks alone, never while a request waits.
        changes: wakes the readers of keys and routes.
        controller: the address of its API.
        bodies: bounds the bytes of bodies; made with the metric for refusals.
        proxy_keys: open the secrets of agents' proxies.
    """

    def __init__(
        self,
        database: Database,
        changes: ChangeFanout,
        controller: Address,
        options: Options = _DEFAULTS,
        *,
        bodies: Callable[[Callable[[str], None]], Bodies],
        proxy_keys: ProxyKeys = NO_PROXY_KEYS,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._changes, self._draining = changes, False
        self._collections, self._lag = GcWatch(), LoopLag()
        self._sweeper, self._sweeps = Sweeper("gateway", _SWEEP_S, self._sweep), 0
        self.metrics = _metrics(self._collections, self._loop_lag_s, options.certificate)
        self.bodies = bodies(self.metrics.body_refused)
        self.metrics.bodies_held(lambda: self.bodies.held)
        # What is read from the database
        self._quotas = QuotaClient(database)
        self.keys = KeyRing(database.listen_connection, changes, ended=self._quotas.forget)
        self.routes = LiveRoutes(database, changes, updated=self._routes_changed, keys=proxy_keys.keys)
        self._crashes = CrashWatch(database)
        # What requests share
        limits = options.limits or limits_for(connection_bound(raise_file_limit()))
        self.demand = Demand(self._loop.time())
        self._places: QueueLeases[Queued] = QueueLeases(self._loop.time, self._places_lack)
        self.queues = self._make_queues()
        self._agents = Pool(most=limits.most, prepare=notice_gone_hosts)
        self._requests = RequestMetrics(self.metrics.registry, self.demand.at_replicas)
        self._shared = Shared(
            self.keys,
            self.routes,
            self._agents,
            self.bodies,
            self.queues,
            self._quotas,
            self._requests,
            failed=FailureLog().note,
            crashes=self._crashes,
        )
        # The way to the controller and the leader
        self._controller = _controller(controller, options, limits)
        reports = DemandReports(database, options.name or f"{socket.gethostname()}/{os.getpid()}", proxy_keys)
        self._reporter = self._reporter_to(reports)
        in_touch_s, has_database = self._reporter.in_touch_s, self._controller.has_database
        self._leases = LeaseClient(reports, self._places, in_touch_s, self.queues.refuse, has_database)
        # The port
        health, sockets = self._health(options.number, options.certificate), options.sockets
        self._peers = None if sockets is None else PeerProcesses(options.number, sockets, health.answers())
        own: dict[bytes, Own] = dict.fromkeys((HEALTH, READY, METRICS), health.handle)
        router = Router(self._shared, self._controller, own, options.proxies, options.cors, options.hsts_s)
        admission = self._admission(limits, options.proxies)
        self._server = _server(router, admission, options.client_stall_s, options.certificate)

    def _make_queues(self) -> Queues:
        return Queues(
            self.routes.table,
            self.demand,
            self._loop.time,
            woken=self._wakes_changed,
            metrics=QueueMetrics(self.metrics.registry),
            places=self._places,
        )

    def _admission(self, limits: Limits, proxies: TrustedProxies) -> ConnectionAdmission:
        return ConnectionAdmission(
            limits,
            name="gateway",
            is_proxy=proxies.__contains__,
            make_way=lambda key: self.queues.end_newest(key, not_served(Refusal.SHARE)),
            closed=self.metrics.connection_closed,
        )

    def _reporter_to(self, reports: DemandReports) -> Reporter:
        return Reporter(
            reports,
            self.demand,
            self.queues,
            self._loop.time,
            self._shared.outcomes,
            self.routes.table,
            self._places_among,
        )

    def _health(self, number: int, certificate: "ServedCertificate | None") -> Health:
        return Health(
            self._controller,
            self.routes,
            draining=lambda: self._draining,
            loop_lag_s=self._loop_lag_s,
            registry=self.metrics.registry,
            number=number,
            others=self._ask_others,
            certificate=(lambda: "") if certificate is None else certificate.state,
            reader=partial(may_read, self.keys),
        )

    @property
    def under_way(self) -> set[Request]:
        """Requests to models that are not over."""
        return self._shared.under_way

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks that run from `start` to `close`. A task that ends before has a defect."""
        own = (self.keys.task, self.routes.refreshing, self._reporter.task, self._leases.task, self._crashes.task)
        each = (*own, *self._quotas.tasks)
        return [task for task in each if task is not None]

    @property
    def port(self) -> int:
        return self._server.port

    async def start(self, listening: socket.socket) -> None:
        self.keys.start()
        if self._peers is not None:
            await self._peers.start()
        self._reporter.start()
        self._leases.start(self._changes)
        self._quotas.start()
        self._crashes.start(self._changes)
        self._sweeper.start()
        await self._server.listen_on(listening)

    async def close(self, drain_s: float) -> None:
        await self.drain(drain_s)
        await self.stop()

    def leave(self) -> None:
        """Takes no new connections: another process serves the same socket. Open connections end with their answers."""
        self._draining = True
        self._server.leave()
        self._server.retire()

    async def drain(self, drain_s: float, *, replaced: bool = False) -> None:
        """Ends passed-on requests at once, and requests to models when they are answered or the time is over.

        New connections are accepted for a few seconds more, since load balancers poll `/readyz` now and then.

        Args:
            drain_s: the longest time for answers of models, in seconds.
            replaced: another process already serves the same socket, and continues.
        """
        self._draining = True
        for passed in list(self._controller.under_way):
            passed.cut()
        if replaced:
            self.leave()
        started = self._loop.time()
        # A connection at rest ends with its next answer: few clients repeat a request that is cut.
        refuse_after_s = _REFUSE_AFTER_S if drain_s > 2 * _REFUSE_AFTER_S else 0.0
        while (spent := self._loop.time() - started) < drain_s and (self.under_way or spent < refuse_after_s):
            if replaced and not len(self._server):
                break
            if spent >= refuse_after_s and not replaced:
                self._server.stop_listening()
            await asyncio.sleep(_POLL_S)
        for request in list(self.under_way):
            request.end_for_stop()

    async def stop(self) -> bool:
        """Ends its connections and tasks, and signs off. Takes a few seconds where the database is away.

        Returns whether each step went well. Failures are logged, and the next step follows.
        """
        self._collections.close()
        steps: list[tuple[str, Step]] = [
            ("connections", lambda: self._server.close(_CLOSE_S)),
            ("usage", self._quotas.stop),
            ("crashes", self._crashes.stop),
            ("routes", self.routes.stop),
            ("places", self._leases.stop),
            ("reports", self._reporter.stop),
            ("keys", self.keys.stop),
            ("sweeps", self._sweeper.stop),
            ("agents", self._agents.close),
            ("controller", self._controller.pool.close),
        ]
        if self._peers is not None:
            steps.append(("peers", self._peers.stop))
        return await each_in_time(steps)

    async def _ask_others(self, question: str) -> Mapping[int, bytes | None]:
        return await (alone(question) if self._peers is None else self._peers.ask(question))

    def _routes_changed(self) -> None:
        self.queues.routes_changed()
        self._requests.keep(self.routes.table.revisions(), self._loop.time())

    def _places_lack(self) -> None:
        self._leases.poke()

    def _places_among(self, answer: ReportAnswer) -> None:
        self._places.rank, self._places.gateways = answer.rank, answer.gateways

    def _wakes_changed(self) -> None:
        self._reporter.poke()

    def _sweep(self, now: float) -> None:
        self._lag.note(now, self._sweeper.late_s)
        self._sweeper.each(self.under_way, lambda request: request.overdue(now))
        self._sweeps += 1
        if self._sweeps % _POOL_EVERY == 0:
            self._sweeper.each(self._controller.under_way, lambda passed: passed.overdue(now))
            self._agents.sweep()
        self.queues.pump_all()

    def _loop_lag_s(self) -> float:
        return self._lag.seconds(self._loop.time(), self._sweeper.due)


def _metrics(
    collections: GcWatch, loop_lag_s: Callable[[], float], certificate: "ServedCertificate | None"
) -> GatewayMetrics:
    metrics = GatewayMetrics(CollectorRegistry())
    metrics.loop_lag(loop_lag_s)
    metrics.registry.register(ProcessMetrics("gateway", lambda: {(): read_figures(collections)}))
    if certificate is not None:
        metrics.certificate(lambda: certificate.expires_s, lambda: certificate.problem)
    return metrics


def _controller(address: Address, options: Options, limits: Limits) -> Controller:
    most_strangers, others = max(1, limits.most // _STRANGERS_SHARE), deque(options.others)
    return Controller(address, options.secret, Pool(), most_strangers=most_strangers, others=others)


def _server(
    router: Router, admission: ConnectionAdmission, client_stall_s: float, certificate: "ServedCertificate | None"
) -> Server:
    """Serves admitted connections. An upload has a limit of its own, which answers with an error."""
    progress = Progress(body_s=UPLOAD_LIMIT_S + 10.0, write_s=client_stall_s)
    context = None if certificate is None else lambda: certificate.context
    return Server(Service(router.handle, router.malformed, admission, progress), context)
