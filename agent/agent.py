"""One agent: its parts, and in which order they start and end."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import aiohttp
import structlog

from agent.clock import boot_clock
from agent.engine_proxy.proxy import Proxy
from agent.link.context import LinkContext
from agent.link.controllers import Controllers
from agent.link.link import Link
from agent.link.send_queue import SendQueue
from agent.parts import open_containers, open_fetches, open_host, open_requests, process_context
from agent.processes.supervisor import Supervisor
from agent.sampling.backlog import Backlog
from agent.sampling.pid_owners import PidOwners
from agent.sampling.sampler import Sampler
from agent.settings import AgentSettings
from http1.tls.certificate import POLL_S, ServedCertificate
from schemas.wire import Protocols

_EXIT_DRAIN_CAP_S: Final = 4.0
_EXIT_STOP_LIMIT_S: Final = 5.0
_EXIT_ACK_LIMIT_S: Final = 2.0

log = structlog.get_logger()


class Agent:
    """One agent on one data folder."""

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
        """Runs until the stop or a refusal. Cancelling it is like a crash: the engines keep running.

        Raises:
            AgentError: it cannot run, or was refused.
        """
        settings = self._settings
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
                spoken=self._spoken,
            )
            link = Link(link_context, self._on_ready)
            log.info("agent started", worker=host.name, data_dir=str(settings.data_dir), proxy_port=proxy.port)
            self._on_started()
            await self._serve(link, sampler, supervisor, proxy, certificate)
            log.info("agent stopped", worker=host.name)

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
            await link.leave()  # at once, so that nothing more is placed here
            if self._settings.on_exit == "stop":
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


async def _tell_changes(certificate: ServedCertificate, link: Link) -> None:
    """Callers accept what the last hello told, so a new certificate is told at once."""
    while True:
        await asyncio.sleep(POLL_S)
        if await asyncio.to_thread(certificate.look):
            await link.reconnect("the proxy has a new certificate")
