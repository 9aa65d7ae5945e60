"""Opens the parts of one agent. Each opener registers its cleanup on the exit stack."""

import asyncio
import contextlib
import os
from dataclasses import dataclass

import structlog

from agent.clock import boot_clock
from agent.containers.docker_engine import DockerEngine
from agent.containers.runtime import ContainerRuntime
from agent.decide.engine_environment import SETTING, format_names, held_back
from agent.doctor.docker_probe import KnownRuntimes
from agent.engine_proxy.certificate import proxy_certificate
from agent.engine_proxy.in_flight import InFlightRequests
from agent.engine_proxy.proxy import Proxy
from agent.errors import DataFolderError
from agent.gpus.child_reader import ChildReader
from agent.gpus.reader import GpuReader
from agent.gpus.simulated import SimulatedReader, load_host
from agent.gpus.verdicts import Verdicts
from agent.host_inventory.host import read_boot_id, real_host, simulated_host
from agent.host_inventory.inventory import InventoryWatch
from agent.link.controller_heartbeat import ControllerHeartbeat
from agent.link.send_queue import SendQueue
from agent.model_cache.answers import CacheAnswers
from agent.model_cache.cache_folder import CacheFolder
from agent.model_cache.cache_uses import UseMarks, agent_id
from agent.model_cache.fetches import Fetches
from agent.processes.account import container_user
from agent.processes.cgroups import Cgroups, delegated_folder
from agent.processes.engine_accounts import EngineAccounts
from agent.processes.engine_activity import EngineActivity
from agent.processes.folders import InstanceFolders
from agent.processes.ports import PortAllocator
from agent.processes.probe import Prober
from agent.processes.process_context import ProcessContext
from agent.sampling.request_counts import RequestCounter
from agent.settings import AgentSettings, host_label
from agent.state.journal import Journal
from agent.state.process_records import repositories_of
from http1.tls.certificate import ServedCertificate
from schemas.process_figures import GcWatch
from schemas.wire import ReportedHost

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class HostParts:
    """The data folder, the host and its GPUs."""

    collections: GcWatch
    journal: Journal
    name: str  # of the worker
    boot_id: str
    folders: InstanceFolders
    accounts: EngineAccounts
    inventory: InventoryWatch
    heartbeat: ControllerHeartbeat


@dataclass(frozen=True, slots=True)
class RequestParts:
    """The proxy, and the counters of requests."""

    in_flight: InFlightRequests
    certificate: ServedCertificate | None  # of the proxy; None: it speaks no TLS
    proxy: Proxy
    counter: RequestCounter
    prober: Prober


async def open_host(settings: AgentSettings, stack: contextlib.AsyncExitStack) -> HostParts:
    """Raises AgentError if the data folder, the GPUs or the settings cannot be used."""
    collections = GcWatch()
    stack.callback(collections.close)
    journal = Journal(settings.data_dir)
    stack.callback(journal.close)
    name, host, reader = _worker(settings, journal)
    await reader.open()
    stack.push_async_callback(reader.aclose)
    boot_id, folders = read_boot_id(), InstanceFolders(settings.data_dir)
    accounts = EngineAccounts(settings.engine_account(), journal, folders)
    stack.callback(accounts.close)
    _warn_of_accounts(accounts, settings)
    _log_held_back(settings)
    address = settings.docker_address()
    inventory = InventoryWatch(
        reader,
        host,
        reserve_gpu_mib=settings.reserve_gpu_memory,
        runtimes=None if address is None else KnownRuntimes(address, boot_clock).read,
        engine_environment=settings.engine_environment,
    )
    await inventory.read_gpus()
    heartbeat = ControllerHeartbeat(journal, boot_clock, boot_id)
    return HostParts(collections, journal, name, boot_id, folders, accounts, inventory, heartbeat)


async def open_fetches(settings: AgentSettings, host: HostParts, stack: contextlib.AsyncExitStack) -> Fetches:
    cache = CacheFolder(settings.cache_dir)
    fetches = Fetches(
        cache,
        limit_mib=settings.cache_limit,
        offline=settings.offline,
        in_use=lambda: repositories_of(host.journal.live()),
        marks=UseMarks(cache.marks, agent_id(settings.data_dir), host.boot_id),
    )
    await fetches.uses.open()
    stack.push_async_callback(fetches.aclose)
    return fetches


def open_containers(settings: AgentSettings, host: HostParts, stack: contextlib.AsyncExitStack) -> ContainerRuntime:
    address = settings.docker_address()
    docker = None if address is None else DockerEngine(address)
    if docker is not None:
        stack.push_async_callback(docker.aclose)
    user = None if settings.container_user is None else container_user(settings.container_user)
    return ContainerRuntime(
        docker, host.journal, host.folders, settings.cache_dir, user, host.accounts, host.inventory.index_of
    )


async def open_requests(
    settings: AgentSettings, host: HostParts, fetches: Fetches, stack: contextlib.AsyncExitStack
) -> RequestParts:
    """Binds the proxy's port. Raises AgentError if the port is in use, or the certificate cannot be used."""
    in_flight, certificate = InFlightRequests(), proxy_certificate(settings, host.name)
    proxy = Proxy(
        *(host.journal, host.folders, in_flight, host.heartbeat, CacheAnswers(fetches)),
        host=settings.proxy_host,
        port=settings.proxy_port,
        certificate=certificate,
    )
    await stack.enter_async_context(proxy)
    counter = RequestCounter(host.journal.live, in_flight, boot_clock)
    return RequestParts(in_flight, certificate, proxy, counter, Prober())


def process_context(
    settings: AgentSettings,
    host: HostParts,
    requests: RequestParts,
    fetches: Fetches,
    containers: ContainerRuntime,
    send_queue: SendQueue,
) -> ProcessContext:
    return ProcessContext(
        journal=host.journal,
        folders=host.folders,
        ports=PortAllocator(),
        prober=requests.prober,
        in_flight=requests.in_flight,
        clock=boot_clock,
        boot_id=host.boot_id,
        cgroups=Cgroups(delegated_folder() if settings.cgroup == "auto" else settings.cgroup_folder()),
        accounts=host.accounts,
        allotting=asyncio.Lock(),
        inventory=host.inventory,
        gpus_listing=host.inventory.listing if settings.simulate is None else lambda _key: (),
        activity=EngineActivity(requests.proxy, requests.counter, host.inventory),
        report=lambda record: send_queue.add_report(record.report()),
        fetches=fetches,
        containers=containers,
        engine_environment=settings.engine_environment,
    )


def _worker(settings: AgentSettings, journal: Journal) -> tuple[str, ReportedHost, GpuReader]:
    """The worker's name, its host, and a reader of its real or simulated GPUs."""
    known = journal.host_state.worker
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


def _warn_of_accounts(accounts: EngineAccounts, settings: AgentSettings) -> None:
    """Warns where engines are not isolated, or may not enter a folder that they need."""
    account = accounts.any
    if account is None:
        log.warning("engines run as the agent and can read its data folder; see --engine-user", uid=os.geteuid())
        return
    for folder in (settings.data_dir.parent, settings.cache_dir):
        if (stopped := account.stopped_at(folder)) is not None:
            log.warning("engines may not enter a folder that they need", folder=str(stopped), uid=account.uid)


def _log_held_back(settings: AgentSettings) -> None:
    # Logged at the start, since a missing variable shows late, in an engine's error.
    if names := held_back(os.environ, settings.engine_environment):
        log.info("variables not passed on to engines", variables=format_names(names), setting=SETTING)
