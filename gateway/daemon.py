"""The gateway's process: settings → database → gateway → exit code."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Final

import structlog
import uvloop

from controller.live.change_fanout import ChangeFanout
from controller.live.database import DatabaseUrlError, check_url, open_lazily, publish_changes
from gateway.gateway import Gateway
from gateway.prefork import serve_forked
from gateway.settings import GatewaySettings, address_of
from http1.bodies import Bodies
from http1.files import raise_file_limit
from http1.forwarded import TrustedProxies
from http1.server import BACKLOG
from schemas.printing import escape_log_event

READY: Final = b"ready\n"
_GC_THRESHOLDS: Final = (20_000, 20, 20)  # requests leave few cycles
_PARENT_POLL_S: Final = 0.2
_END_LIMIT_S: Final = 2.0

log = structlog.get_logger(__name__)


def main(settings: GatewaySettings, *, listen_fd: int | None = None) -> int:
    """Runs a gateway until SIGTERM or SIGINT, then ends the process; returns the exit code where it cannot run.

    Args:
        settings: validated settings.
        listen_fd: a listening socket of the parent process; then the gateway ends with that, and writes a line to
            stdout when it serves. None: it listens on its own.
    """
    _configure_logs(settings)
    raise_file_limit()
    try:
        check_url(settings.database_url.get_secret_value())
        listening = _listening(settings, listen_fd)
    except (OSError, DatabaseUrlError) as error:
        log.error("gateway cannot run", error=str(error))  # noqa: TRY400 - the message says what to do
        return 1
    child_of_a_controller = listen_fd is not None

    def on_ready() -> None:
        if child_of_a_controller:
            os.write(sys.stdout.fileno(), READY)

    async def serve() -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        parent = asyncio.create_task(_end_with_parent(os.getppid()), name="parent")
        try:
            return await run_gateway(settings, listening, stop, on_ready)
        finally:
            parent.cancel()

    def run() -> int:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve())

    gc.collect()
    gc.freeze()  # what is loaded now stays; collections need not look at it, nor copy its pages after a fork
    gc.set_threshold(*_GC_THRESHOLDS)
    code = serve_forked(run, with_parent=child_of_a_controller)
    sys.stderr.flush()
    os._exit(code)  # taking all modules apart would take longer than the stop itself


async def run_gateway(
    settings: GatewaySettings, listening: socket.socket, stop: asyncio.Event, on_ready: Callable[[], None]
) -> int:
    """Runs a gateway on a bound socket until `stop` is set; returns 0."""
    database = await open_lazily(settings.database_url.get_secret_value())
    changes = ChangeFanout()
    gateway = Gateway(
        database,
        changes,
        address_of(settings.controller),
        name=f"{socket.gethostname()}:{listening.getsockname()[1]}",
        secret=settings.gateway_secret.get_secret_value() if settings.gateway_secret is not None else "",
        proxies=TrustedProxies(settings.trusted_proxy),
        bodies=lambda refused: Bodies(
            settings.bodies_in_flight * 2**20, settings.bodies_in_flight_per_key * 2**20, refused=refused
        ),
    )
    feed = asyncio.create_task(publish_changes(database, changes), name="change-feed")
    try:
        await gateway.start(listening)
        log.info("gateway serving", port=gateway.port, controller=settings.controller)
        on_ready()
        await stop.wait()
        log.info("gateway stopping", under_way=len(gateway.under_way))
        await gateway.close(settings.drain)
    finally:
        feed.cancel()
        await asyncio.wait([feed], timeout=_END_LIMIT_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_LIMIT_S):
                await database.close()
    log.info("gateway stopped")
    return 0


def _listening(settings: GatewaySettings, listen_fd: int | None) -> socket.socket:
    if listen_fd is not None:
        return socket.socket(fileno=listen_fd)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG)
    except OSError as error:
        where, why = f"{settings.host}:{settings.port}", error.strerror or error
        raise OSError(f"cannot listen on {where}: {why}; choose another port with --port") from error


async def _end_with_parent(parent: int) -> None:
    """Ends this process at once when the one that forked it has: another one listens on the same port."""
    while os.getppid() == parent:  # noqa: ASYNC110 - nothing notifies of it
        await asyncio.sleep(_PARENT_POLL_S)
    os._exit(1)


def _configure_logs(settings: GatewaySettings) -> None:
    json = settings.log_format == "json"
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            escape_log_event,
            structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, settings.log_level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
