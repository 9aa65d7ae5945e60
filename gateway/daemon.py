"""The gateway's process: settings → database → gateway → exit code."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
import uvloop

from controller.live.change_fanout import ChangeFanout
from controller.live.database import DatabaseUrlError, check_url, open_lazily, publish_changes
from controller.live.endpoints import Database
from controller.live.proxy_keys import ProxyKeys
from gateway.admission.cors import Cors
from gateway.gateway import Gateway, Options
from gateway.lifecycle.parent_pipe import Holder, holder_of
from gateway.lifecycle.peer_processes import Sockets, bind_sockets
from gateway.lifecycle.prefork import Handover, serve_forked
from gateway.lifecycle.shutdown_limits import Stop, Watch, end_at_last, in_time
from gateway.settings import GatewaySettings, addresses_of, part_of
from http1.bodies import Bodies
from http1.daemon.open_files import raise_file_limit
from http1.daemon.service_manager import READY, STOPPING, ServiceManager
from http1.forwarded import TrustedProxies
from http1.protocol.listening import inherited_listener, open_listeners
from http1.tls.pinned import trusting
from schemas.log_lines import configure_logs
from schemas.unknown_variables import unknown_variables

if TYPE_CHECKING:  # slow to import
    from http1.tls.certificate import ServedCertificate

_SERVES: Final = b"serves\n"
_GC_THRESHOLDS: Final = (20_000, 20, 20)  # requests leave few cycles
_POLL_S: Final = 0.2
_END_LIMIT_S: Final = 2.0
_REPLACED_DRAIN_S: Final = 600.0  # for answers of a process whose successor serves already
_DEFECT_DRAIN_S: Final = 0.5  # connections wait for its successor
_CONTROLLERS: Final = 0  # the pipe that a controller holds is the standard input

log = structlog.get_logger(__name__)


def main(settings: GatewaySettings, *, listen_fds: Sequence[int] = ()) -> int:
    """Runs a gateway until SIGTERM or SIGINT, then ends the process; returns the exit code where it cannot run.

    Where a service manager has passed the socket (`LISTEN_FDS`), the serving processes drain after the end of this one,
    while its successor serves.

    Args:
        settings: validated settings.
        listen_fds: listening sockets of a controller that starts it, one for each process. Then it ends with that,
            which holds the other end of its standard input, and writes a line to stdout for each process that serves.
            None: it opens its own.
    """
    manager = ServiceManager.claim()
    _configure_logs(settings)
    # A controller that starts it has the same variables, and has logged the warnings.
    for name, advice in unknown_variables([] if listen_fds else os.environ.items()).items():
        log.warning("unknown environment variable is ignored", variable=name, advice=advice)
    raise_file_limit()
    count = len(listen_fds) or settings.gateway_processes
    try:
        check_url(settings.database_url.get_secret_value())
        certificate_of(settings)  # each process reads it for itself
        proxy_keys_of(settings)  # as above
        authority_of(settings)
        inherited = None if listen_fds else inherited_listener()
        listening = _listening(settings, listen_fds, inherited)
        sockets = bind_sockets(count) if count > 1 else None
    except (OSError, DatabaseUrlError, UnusableCertificateError, UnusableKeyError) as error:
        log.error("gateway cannot run", error=str(error))  # noqa: TRY400 - the message has the remedy
        return 1

    handover = None if inherited is None else Handover()

    def run(number: int, parent: int) -> int:
        if count > 1:
            _configure_logs(settings, process=number + 1)
        for other in (other_socket for other_socket in listening if other_socket is not listening[number]):
            other.close()
        place = Place(listening[number], number, sockets, manager, handover)
        # Never closed: that would wait for tasks and threads that do not end, and the process ends at once.
        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        return runner.run(_serve(settings, place, parent, with_controller=bool(listen_fds)))

    gc.collect()
    gc.freeze()  # what is loaded now stays: collections need neither scan it nor copy its pages after a fork
    gc.set_threshold(*_GC_THRESHOLDS)
    code = serve_forked(run, count, parents=_CONTROLLERS if listen_fds else None, handover=handover)
    if sockets is not None:
        sockets.remove()
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
    os._exit(code)  # taking all modules apart would take longer than the stop itself


@dataclass(frozen=True, slots=True)
class Place:
    """The resources of one process of a gateway.

    Attributes:
        sockets: those by which the processes reach each other; None if it is the only one.
        handover: lets this process drain while its successor serves; None if its parent waits for it.
    """

    listening: socket.socket
    number: int
    sockets: Sockets | None
    manager: ServiceManager = field(default_factory=ServiceManager)
    handover: Handover | None = None

    async def keep_alive(self) -> None:
        """Shows the watchdog that the first process lives, which restarts the others."""
        if self.number == 0:
            await self.manager.keep_alive()

    def remove_sockets(self) -> None:
        """Removes the sockets' files, where the process that made them has died."""
        if self.sockets is not None:
            self.sockets.remove()


async def _serve(settings: GatewaySettings, place: Place, parent: int, *, with_controller: bool) -> int:
    """Serves until a signal, or until another process does instead; returns the exit code."""
    stop = Stop()
    loop = asyncio.get_running_loop()
    stop.replaced = place.handover is not None
    watching = _end_with_controller(parent, stop, place) if with_controller else _end_with_parent(parent, stop, place)
    tasks = asyncio.create_task(watching, name="parent"), asyncio.create_task(place.keep_alive(), name="watchdog")

    def end() -> None:
        stop.set()
        if place.handover is not None:
            tasks[1].cancel()  # from now on the successor speaks to the service manager

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)

    def on_ready() -> None:
        if with_controller:
            with contextlib.suppress(OSError):
                os.write(sys.stdout.fileno(), _SERVES)

    try:
        return await run_gateway(settings, place, stop, on_ready)
    finally:
        for task in tasks:
            task.cancel()


async def run_gateway(settings: GatewaySettings, place: Place, stop: Stop, on_ready: Callable[[], None]) -> int:
    """Runs a gateway on a bound socket until `stop` is set. Returns the exit code: 1 where a task of it has failed."""
    database = await open_lazily(settings.database_url.get_secret_value())
    count = 1 if place.sockets is None else len(place.sockets.bound)
    changes = ChangeFanout()
    certificate = certificate_of(settings)
    addresses = addresses_of(settings.controller, authority_of(settings))
    options = Options(
        name=_name(place, count),
        secret=settings.gateway_secret.get_secret_value() if settings.gateway_secret is not None else "",
        others=addresses[1:],
        proxies=TrustedProxies(settings.trusted_proxy),
        cors=Cors(settings.cors_origins),
        hsts_s=settings.hsts,
        client_stall_s=settings.client_stall,
        certificate=certificate,
        number=place.number,
        sockets=place.sockets,
    )
    gateway = Gateway(
        database,
        changes,
        addresses[0],
        options,
        bodies=lambda refused: Bodies(
            part_of(settings.bodies_in_flight, count),
            part_of(settings.bodies_in_flight_per_key, count),
            refused=refused,
        ),
        proxy_keys=proxy_keys_of(settings),
    )
    watching = [] if certificate is None else [asyncio.create_task(certificate.watch(), name="certificate")]
    feed = asyncio.create_task(publish_changes(database, changes), name="change-feed")
    try:
        await gateway.start(place.listening)
        log.info("gateway serving", port=gateway.port, controller=settings.controller)
        on_ready()
        place.manager.notify(READY)
        watch = Watch({feed, *watching, *gateway.tasks})
        await watch.until_stopped(stop)
        if place.handover is not None:
            gateway.leave()  # never shuts the socket down: other processes have the same one
            if stop.is_set():
                place.handover.leave(place.number)
        elif not watch.failed:
            place.manager.notify(STOPPING)
        log.info("gateway stopping", under_way=len(gateway.under_way), replaced=stop.replaced)
        drain_s = _drain_s(settings, place, stop, failed=watch.failed)
        with end_at_last(drain_s):
            replaced = place.handover is not None or (stop.replaced and stop.is_set())
            await watch.while_it_drains(gateway.drain(drain_s, replaced=replaced), drain_s)
            watch.failed |= not await gateway.stop()
    finally:
        with end_at_last(0.0):
            for task in (feed, *watching):
                task.cancel()
            await asyncio.wait([feed, *watching], timeout=_END_LIMIT_S)
            await in_time("database", partial(_close, database), 2 * _END_LIMIT_S)
    log.info("gateway stopped")
    return 1 if watch.failed else 0


def _drain_s(settings: GatewaySettings, place: Place, stop: Stop, *, failed: bool) -> float:
    """The longest time for answers of models, in seconds."""
    if stop.is_set() and stop.replaced:
        return settings.drain if place.handover is not None else _REPLACED_DRAIN_S
    return _DEFECT_DRAIN_S if failed else settings.drain


def certificate_of(settings: GatewaySettings) -> "ServedCertificate | None":
    """The certificate that the settings name; None without TLS.

    Raises:
        UnusableCertificateError: its files cannot be used.
    """
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    from http1.tls.certificate import CertificateError, ServedCertificate  # noqa: PLC0415 - slow to import

    try:
        return ServedCertificate(settings.tls_cert, settings.tls_key)
    except CertificateError as error:
        raise UnusableCertificateError(f"--tls-cert, --tls-key: {error}") from error


def authority_of(settings: GatewaySettings) -> ssl.SSLContext | None:
    """Verifies controllers at `https://`; None without one.

    Raises:
        UnusableCertificateError: the authority's file cannot be used.
    """
    if "https://" not in settings.controller:
        return None
    try:
        return trusting(settings.ca)
    except OSError as error:
        raise UnusableCertificateError(f"--ca: {settings.ca} cannot be used: {error.strerror or error}") from error


def proxy_keys_of(settings: GatewaySettings) -> ProxyKeys:
    """The keys that open the secrets of agents' proxies.

    Raises:
        UnusableKeyError: their file cannot be used.
    """
    file = settings.proxy_keys_at
    try:
        return ProxyKeys(file, named=settings.proxy_key_file is not None)
    except (OSError, ValueError) as error:
        raise UnusableKeyError(f"GPUWARD_PROXY_KEY_FILE: {file}: {error}") from error


class UnusableKeyError(Exception):
    """The file of the proxies' keys cannot be used; the message has the remedy."""


class UnusableCertificateError(Exception):
    """The files of the certificate cannot be used; the message has the remedy."""


async def _close(database: Database) -> None:
    """Closes it, unless it is away and would wait for long: the process ends anyway."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_END_LIMIT_S):
            await database.close()


def _name(place: Place, count: int) -> str:
    """Of the process, by which the leader and operators know it."""
    name = f"{socket.gethostname()}:{place.listening.getsockname()[1]}"
    return f"{name}/{place.number + 1}" if count > 1 else name


def _listening(
    settings: GatewaySettings, listen_fds: Sequence[int], inherited: socket.socket | None
) -> list[socket.socket]:
    if listen_fds:
        return [socket.socket(fileno=fd) for fd in listen_fds]
    if inherited is not None:  # all take connections from one queue: none is lost with a process
        return [inherited.dup() for _ in range(settings.gateway_processes)]
    try:
        return open_listeners(settings.host, settings.port, settings.gateway_processes)
    except OSError as error:
        where, why = f"{settings.host}:{settings.port}", error.strerror or error
        raise OSError(f"cannot listen on {where}: {why}; choose another port with --port") from error


async def _end_with_parent(parent: int, stop: Stop, place: Place) -> None:
    """Ends this process at once when the one that forked it has: another process may listen on the same port."""
    while holder_of(parent) is Holder.LIVES:  # noqa: ASYNC110 - nothing notifies of it
        await asyncio.sleep(_POLL_S)
    if place.handover is not None and stop.is_set():
        return
    place.remove_sockets()
    os._exit(1)


async def _end_with_controller(parent: int, stop: Stop, place: Place) -> None:
    """Ends this process at once when its controller has. Where only its parent has, it serves until it is replaced."""
    orphaned = False
    while (controller := holder_of(_CONTROLLERS)) is not Holder.ENDED:
        if not orphaned and holder_of(parent) is Holder.ENDED:
            orphaned = True
            log.warning("the process that forks gateways has died; serving until the controller has replaced it")
        if controller is Holder.REPLACED and not stop.is_set():
            place.remove_sockets()  # a dead parent's: no other process removes them
            stop.replaced = True
            stop.set()
        await asyncio.sleep(_POLL_S)
    if orphaned:
        place.remove_sockets()
    os._exit(1)


def _configure_logs(settings: GatewaySettings, **everywhere: object) -> None:
    configure_logs(json=settings.log_format == "json", level=settings.log_level, **everywhere)
