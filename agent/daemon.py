"""Runs an agent in this process or loop: signals, readiness and the exit code."""

import asyncio
import contextlib
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import aiohttp
import structlog
import uvloop

from agent.clock import boot_clock
from agent.decide.engine_accounts import UNUSED_UIDS
from agent.engine_proxy.proxy import Proxy
from agent.errors import AgentError, NoGpusError
from agent.gpus.child_reader import ChildReader
from agent.link.context import LinkContext
from agent.link.controllers import Controllers
from agent.link.link import Link
from agent.link.send_queue import SendQueue
from agent.parts import open_containers, open_fetches, open_host, open_requests, process_context
from agent.processes.engine_accounts import why_not_isolated
from agent.processes.supervisor import Supervisor
from agent.sampling.backlog import Backlog
from agent.sampling.pid_owners import PidOwners
from agent.sampling.sampler import Sampler
from agent.settings import AgentSettings
from http1.daemon.service_manager import READY, ServiceManager, until_signalled
from http1.tls.certificate import POLL_S, ServedCertificate
from schemas.log_lines import configure_logs
from schemas.unknown_variables import unknown_variables
from schemas.wire import SPOKEN, Protocols

_EXIT_DRAIN_CAP_S: Final = 4.0
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

    async def serve(stop: asyncio.Event) -> int:
        return await run_agent(settings, stop=stop, on_started=lambda: manager.notify(READY))

    gc.collect()
    gc.freeze()  # collections skip the loaded modules, which never become garbage
    gc.set_threshold(*_GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(until_signalled(manager, serve))


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
        settings: `on_exit` decides whether a clean shutdown stops the engines.
        stop: requests a clean shutdown.
        on_ready: called at the controller's first welcome.
        on_started: called once the agent supervises its engines, with a controller or without.
        spoken: protocols that the agent offers.

    Returns:
        0 after a clean shutdown; 1 if the agent cannot run or was refused (the reason is logged).
    """
    try:
        await _run(settings, stop, on_ready, on_started, spoken)
    except AgentError as error:
        log.error("agent failed", error=str(error))  # noqa: TRY400 - the message says what to do; a trace would hide it
        return 1
    return 0


async def _run(
    settings: AgentSettings,
    stop: asyncio.Event,
    on_ready: Callable[[], None] | None,
    on_started: Callable[[], None],
    spoken: Protocols,
) -> None:
    """Raises AgentError if the agent cannot run, or was refused."""
    async with contextlib.AsyncExitStack() as stack:
        host = await open_host(settings, stack)
        fetches = await open_fetches(settings, host, stack)
        containers = open_containers(settings, host, stack)
        requests = await open_requests(settings, host, fetches, stack)
        proxy, certificate, send_queue = requests.proxy, requests.certificate, SendQueue()
        processes = process_context(settings, host, requests, fetches, containers, send_queue)
        supervisor = await stack.enter_async_context(Supervisor(processes, host.heartbeat))
        backlog, owners = Backlog(), PidOwners(str(settings.data_dir))
        sampler = Sampler(host.inventory, host.journal.live, owners, requests.counter, backlog, boot_clock)
        link_context = LinkContext(
            settings=settings,
            name=host.name,
            boot_id=host.boot_id,
            proxy_port=proxy.port,
            http=await stack.enter_async_context(aiohttp.ClientSession()),
            journal=host.journal,
            send_queue=send_queue,
            supervisor=supervisor,
            inventory=host.inventory,
            sampler=sampler,
            backlog=backlog,
            clock=boot_clock,
            heartbeat=host.heartbeat,
            controllers=Controllers(settings.controller_urls, settings.ca, settings.data_dir),
            certificate=lambda: "" if certificate is None else certificate.fingerprint.hex(),
            collections=host.collections,
            spoken=spoken,
        )
        link = Link(link_context, on_ready)
        log.info("agent started", worker=host.name, data_dir=str(settings.data_dir), proxy_port=proxy.port)
        on_started()
        await _serve(settings, stop, link, sampler, supervisor, proxy, certificate)
        log.info("agent stopped", worker=host.name)


async def _serve(
    settings: AgentSettings,
    stop: asyncio.Event,
    link: Link,
    sampler: Sampler,
    supervisor: Supervisor,
    proxy: Proxy,
    certificate: ServedCertificate | None,
) -> None:
    linked = asyncio.create_task(link.run(), name="link")
    stopped = asyncio.create_task(stop.wait(), name="stop")
    sampled = asyncio.create_task(sampler.run(), name="sampler")
    tasks = [linked, stopped, sampled]
    if certificate is not None:
        tasks.append(asyncio.create_task(_announce_changes(certificate, link), name="certificate"))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if sampled.done():
            await sampled  # raises: the agent ends as in a crash, and the engines keep running
        supervisor.refuse_starts()
        proxy.refuse_requests()
        await link.leave()  # before the drain, so that nothing more is placed here
        if settings.on_exit == "stop":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EXIT_STOP_LIMIT_S):
                    await supervisor.stop_all(_EXIT_DRAIN_CAP_S)
            await link.flush(_EXIT_ACK_LIMIT_S)
        await proxy.let_callers_leave()
        await link.goodbye()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if not linked.cancelled() and (error := linked.exception()) is not None:
        raise error


async def _announce_changes(certificate: ServedCertificate, link: Link) -> None:
    """Callers accept only the certificate of the last hello, so a new one needs a new hello."""
    while True:
        await asyncio.sleep(POLL_S)
        if await asyncio.to_thread(certificate.look):
            await link.reconnect("the proxy has a new certificate")


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
    """The setting `engine_user` that gives each instance an account of its own, or None and why that cannot be."""
    why = why_not_isolated(needed)
    return (None, why) if why else (UNUSED_UIDS, "")
