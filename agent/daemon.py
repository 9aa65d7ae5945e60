"""The agent's composition root: settings, journal, GPUs, processes, proxy, link; and a clean shutdown."""

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import aiohttp
import structlog
import uvloop

from agent.clock import boot_clock
from agent.containers.container_user import container_user
from agent.containers.docker_engine import DockerEngine
from agent.containers.known_runtimes import KnownRuntimes
from agent.containers.runtime import ContainerRuntime
from agent.controller_heartbeat import ControllerHeartbeat
from agent.decide.engine_accounts import UNUSED_UIDS
from agent.engine_signs import EngineSigns
from agent.errors import AgentError, DataFolderError, NoGpusError
from agent.gpus.child_reader import ChildReader
from agent.gpus.reader import GpuReader
from agent.gpus.simulated import SimulatedReader, load_host
from agent.gpus.verdicts import Verdicts
from agent.host import read_boot_id, real_host, simulated_host
from agent.in_flight import InFlightRequests
from agent.inventory import InventoryWatch
from agent.journal import Journal
from agent.link.context import LinkContext
from agent.link.controllers import Controllers
from agent.link.link import Link
from agent.link.send_queue import SendQueue
from agent.model_cache.answers import CacheAnswers
from agent.model_cache.cache_folder import CacheFolder
from agent.model_cache.fetches import Fetches
from agent.model_cache.use_marks import UseMarks, agent_id
from agent.process_records import repositories_of
from agent.processes.cgroups import Cgroups, delegated_folder
from agent.processes.engine_accounts import EngineAccounts, why_not_isolated
from agent.processes.folders import InstanceFolders
from agent.processes.ports import PortAllocator
from agent.processes.probe import Prober
from agent.processes.process_context import ProcessContext
from agent.processes.supervisor import Supervisor
from agent.proxy import Proxy
from agent.proxy_certificate import proxy_certificate
from agent.sampling.backlog import Backlog
from agent.sampling.pid_owners import PidOwners
from agent.sampling.request_counts import RequestCounter
from agent.sampling.sampler import Sampler
from agent.settings import AgentSettings, host_label
from http1.client import BoundedConnector
from http1.service_manager import READY, STOPPING, ServiceManager
from http1.tls.certificate import POLL_S, ServedCertificate
from schemas.log_lines import configure_logs
from schemas.process_figures import GcWatch
from schemas.unknown_variables import unknown_variables
from schemas.wire import SPOKEN, HostFacts, Protocols

EXIT_DRAIN_CAP_S: Final = 4.0
_EXIT_STOP_LIMIT_S: Final = 5.0
_EXIT_ACK_LIMIT_S: Final = 2.0

_GC_THRESHOLDS: Final = (20_000, 20, 20)  # requests leave few cycles

log = structlog.get_logger()


def main(settings: AgentSettings) -> int:
    """Runs an agent until SIGTERM or SIGINT; returns the exit code."""
    manager = ServiceManager.claim()
    configure_logs(json=settings.log_format == "json")
    for name, advice in unknown_variables(os.environ.items()).items():
        log.warning("unknown environment variable is ignored", variable=name, advice=advice)

    async def serve() -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def end() -> None:
            manager.tell(STOPPING)
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        watchdog = asyncio.create_task(manager.keep_alive(), name="watchdog")
        try:
            return await run_agent(settings, stop=stop, on_started=lambda: manager.tell(READY))
        finally:
            watchdog.cancel()

    gc.collect()
    gc.freeze()  # what is loaded now stays: a collection that looks at it delays every answer
    gc.set_threshold(*_GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve())


async def run_agent(
    settings: AgentSettings,
    *,
    stop: asyncio.Event,
    on_ready: Callable[[], None] | None = None,
    on_started: Callable[[], None] = lambda: None,
    spoken: Protocols = SPOKEN,
) -> int:
    """Runs an agent until `stop` is set. Several may run in one loop. Installs no signal handlers.

    Cancelling it is like a crash: engines keep running, and the next agent on the same data folder adopts them.

    Args:
        settings: validated settings.
        stop: set it for a clean shutdown; `settings.on_exit` decides whether the engines stop.
        on_ready: called once, at the controller's first welcome.
        on_started: called once it looks after its engines, with a controller or without.
        spoken: the protocols that it offers to the controller.

    Returns:
        0 after a clean shutdown; 1 if the agent cannot run or was refused (the reason is logged).
    """
    try:
        await _Agent(settings, stop, on_ready, on_started, spoken).run()
    except AgentError as error:
        log.error("agent failed", error=str(error))  # noqa: TRY400 - the message says what to do; a trace would hide it
        return 1
    return 0


async def count_real_gpus() -> int:
    """Number of GPUs that NVML finds on this host; 0 if NVML does not load. Takes seconds at most."""
    reader = ChildReader()
    try:
        await reader.open()
        return len(await reader.read() or ())
    except NoGpusError:
        return 0
    finally:
        await reader.aclose()


def accounts_for_engines(*needed: Path) -> tuple[str | None, str]:
    """The setting `engine_user` that gives each instance an account of its own, or None and why that cannot be.

    Args:
        needed: folders and programs that engines must get to.
    """
    why = why_not_isolated(needed)
    return (None, why) if why else (UNUSED_UIDS, "")


class _Agent:
    """One agent's parts and their lifetimes."""

    def __init__(
        self,
        settings: AgentSettings,
        stop: asyncio.Event,
        on_ready: Callable[[], None] | None,
        on_started: Callable[[], None],
        spoken: Protocols,
    ) -> None:
        self._settings = settings
        self._stop = stop
        self._on_ready = on_ready
        self._on_started = on_started
        self._spoken = spoken

    async def run(self) -> None:
        settings = self._settings
        async with contextlib.AsyncExitStack() as stack:
            collections = GcWatch()
            stack.callback(collections.close)
            journal = Journal(settings.data_dir)
            stack.callback(journal.close)
            name, host, reader = self._host(journal)
            await reader.open()
            stack.push_async_callback(reader.aclose)
            probes = await stack.enter_async_context(_probe_session())
            boot_id = read_boot_id()
            folders, in_flight, send_queue = InstanceFolders(settings.data_dir), InFlightRequests(), SendQueue()
            accounts = EngineAccounts(settings.engine_account(), journal, folders)
            stack.callback(accounts.close)
            _warn_of_accounts(accounts, settings)
            address = settings.docker_address()
            inventory = InventoryWatch(
                reader,
                host,
                reserve_gpu_mib=settings.reserve_gpu_memory,
                runtimes=None if address is None else KnownRuntimes(address, boot_clock).read,
            )
            await inventory.read_gpus()
            heartbeat = ControllerHeartbeat(journal, boot_clock, boot_id)
            cache = CacheFolder(settings.cache_dir)
            fetches = Fetches(
                cache,
                limit_mib=settings.cache_limit,
                offline=settings.offline,
                in_use=lambda: repositories_of(journal.live()),
                marks=UseMarks(cache.marks, agent_id(settings.data_dir), boot_id),
            )
            await fetches.open()
            stack.push_async_callback(fetches.aclose)
            docker = None if address is None else DockerEngine(address)
            if docker is not None:
                stack.push_async_callback(docker.aclose)
            certificate = proxy_certificate(settings, name)
            proxy = Proxy(
                *(journal, folders, in_flight, heartbeat, CacheAnswers(fetches)),
                host=settings.proxy_host,
                port=settings.proxy_port,
                certificate=certificate,
            )
            await stack.enter_async_context(proxy)
            requests = RequestCounter(journal.live, in_flight, probes, boot_clock)
            process_context = ProcessContext(
                journal=journal,
                folders=folders,
                ports=PortAllocator(),
                prober=Prober(probes),
                in_flight=in_flight,
                clock=boot_clock,
                boot_id=boot_id,
                cgroups=Cgroups(_cgroup_folder(settings)),
                accounts=accounts,
                allotting=asyncio.Lock(),
                gpu_index=inventory.index_of,
                gpus_listing=inventory.listing if settings.simulate is None else lambda _key: (),
                signs=EngineSigns(
                    waits=proxy.waits,
                    forget=proxy.forget_waits,
                    tokens_still=requests.tokens_still,
                    tokens_moved=requests.tokens_moved,
                    probing=requests.probing,
                    gpu_idle=inventory.idle_for,
                ),
                report=lambda record: send_queue.add_report(record.report()),
                fetches=fetches,
                containers=ContainerRuntime(
                    docker,
                    journal,
                    folders,
                    settings.cache_dir,
                    None if settings.container_user is None else container_user(settings.container_user),
                    accounts,
                    inventory.index_of,
                ),
            )
            supervisor = await stack.enter_async_context(Supervisor(process_context, inventory, heartbeat))
            backlog = Backlog()
            owners = PidOwners(str(settings.data_dir))
            sampler = Sampler(inventory, journal.live, owners, requests, backlog, boot_clock)
            link_context = LinkContext(
                settings=settings,
                name=name,
                boot_id=boot_id,
                proxy_port=proxy.port,
                http=await stack.enter_async_context(aiohttp.ClientSession(connector=BoundedConnector())),
                journal=journal,
                send_queue=send_queue,
                supervisor=supervisor,
                inventory=inventory,
                sampler=sampler,
                backlog=backlog,
                clock=boot_clock,
                heartbeat=heartbeat,
                controllers=Controllers(settings.controller_urls, settings.ca, settings.data_dir),
                certificate=lambda: "" if certificate is None else certificate.fingerprint.hex(),
                collections=collections,
                spoken=self._spoken,
            )
            link = Link(link_context, self._on_ready)
            log.info("agent started", worker=name, data_dir=str(settings.data_dir), proxy_port=proxy.port)
            self._on_started()
            await self._serve(link, sampler, supervisor, proxy, certificate)
            log.info("agent stopped", worker=name)

    def _host(self, journal: Journal) -> tuple[str, HostFacts, GpuReader]:
        settings, known = self._settings, journal.facts.worker
        if known is not None and settings.name is not None and settings.name != known:
            raise DataFolderError(
                f"{settings.data_dir}: belongs to worker {known!r}; use --name {known} or another --data-dir"
            )
        name = settings.name or known
        if settings.simulate is None:
            host = real_host(settings.labels, settings.reserve_host_memory or 0)
            name = name or host_label()
            verdicts = Verdicts(journal, read_boot_id())
            return name, host, ChildReader(host=name, host_memory_mib=host.memory_mib, verdicts=verdicts)
        worker = load_host(settings.simulate, name)
        host = simulated_host(worker, settings.labels, settings.reserve_host_memory)
        return worker.name, host, SimulatedReader(worker, journal.live, boot_clock)

    async def _serve(
        self,
        link: Link,
        sampler: Sampler,
        supervisor: Supervisor,
        proxy: Proxy,
        certificate: ServedCertificate | None,
    ) -> None:
        """Runs until the stop or a refusal; then shuts the engines down unless `on_exit` keeps them."""
        linked = asyncio.create_task(link.run(), name="link")
        stopped = asyncio.create_task(self._stop.wait(), name="stop")
        sampled = asyncio.create_task(sampler.run(), name="sampler")
        tasks = [linked, stopped, sampled]
        if certificate is not None:
            tasks.append(asyncio.create_task(_tell_changes(certificate, link), name="certificate"))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if sampled.done():
                await sampled  # its error ends the agent like a crash: the engines keep running
            supervisor.refuse_starts()
            proxy.refuse_requests()
            if self._settings.on_exit == "stop":
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_EXIT_STOP_LIMIT_S):
                        await supervisor.stop_all(EXIT_DRAIN_CAP_S)
                await link.flush(_EXIT_ACK_LIMIT_S)
            await proxy.let_callers_leave()
            await link.goodbye()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if not linked.cancelled() and (error := linked.exception()) is not None:
            raise error


async def _tell_changes(certificate: ServedCertificate, link: Link) -> None:
    """Callers accept what the last hello told, so a new certificate is told at once."""
    while True:
        await asyncio.sleep(POLL_S)
        if await asyncio.to_thread(certificate.look):
            await link.reconnect("the proxy has a new certificate")


def _cgroup_folder(settings: AgentSettings) -> Path | None:
    """Where engines' control groups are made; None: nowhere."""
    return delegated_folder() if settings.cgroup == "auto" else settings.cgroup_folder()


def _warn_of_accounts(accounts: EngineAccounts, settings: AgentSettings) -> None:
    """Says at the start what does not isolate engines, or will stop them."""
    account = accounts.any
    if account is None:
        log.warning("engines run as the agent and can read its data folder; see --engine-user", uid=os.geteuid())
        return
    for folder in (settings.data_dir.parent, settings.cache_dir):
        if (stopped := account.stopped_at(folder)) is not None:
            log.warning("engines may not enter a folder that they need", folder=str(stopped), uid=account.uid)


def _probe_session() -> aiohttp.ClientSession:
    """For probes and scrapes, apart from proxied requests: each opens a connection of its own."""
    return aiohttp.ClientSession(
        connector=BoundedConnector(limit=0, force_close=True),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )
