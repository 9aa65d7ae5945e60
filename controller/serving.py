"""The API's server: bounds on bodies, metrics, its port, and the Unix socket for gateways.

It does not bound connections of its own port, since gateways keep strangers off. SECURITY.md states it for operators.
"""

import contextlib
import ipaddress
import os
import socket
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from controller.api.server_log import ServerLog
from controller.gateway_process import bind
from controller.health import LoopLag
from controller.runtime.clock import Clock
from controller.runtime.metrics import ServingMetrics
from controller.serving_tls import ServingTls
from controller.settings import ControllerSettings
from http1.bodies import Bodies
from http1.daemon.open_files import raise_file_limit
from http1.forwarded import TrustedProxies
from http1.protocol.listening import BACKLOG, PlainAcceptor
from schemas.process_figures import GcWatch, read_figures
from schemas.process_metrics import ProcessMetrics

log = structlog.get_logger(__name__)

HTTP_CLOSE_S: Final = 2.0
SOCKET_NAME: Final = "controller.sock"
_LONGEST_PATH: Final = 100  # bytes; the kernel takes 107
_KEEPALIVE_S: Final = 75.0


class CannotListenError(Exception):
    """The address is taken or not of this host; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Serving:
    """The parts of one controller's server, before it listens."""

    registry: CollectorRegistry  # of all metrics of this process
    bodies: Bodies
    proxies: TrustedProxies
    lag: LoopLag
    collections: GcWatch  # close it at the end
    tls: ServingTls | None  # of the public port
    authority_ends: datetime | None  # end of the authority that agents learn, as at the start; None: no authority


def serving_parts(settings: ControllerSettings, tls: ServingTls | None, clock: Clock) -> Serving:
    """Builds the parts with their metrics. Raises ServingTlsError if the authority's file cannot be used."""
    registry = CollectorRegistry()
    metrics = ServingMetrics(registry)
    authority_ends = None if tls is None else tls.authority_ends()
    if tls is not None:
        metrics.certificate(lambda: tls.certificate.expires_s, lambda: tls.certificate.problem)
    if authority_ends is not None:
        metrics.authority(authority_ends.timestamp())
    proxies = TrustedProxies(settings.trusted_proxy)
    raise_file_limit()
    bodies = Bodies(
        settings.bodies_in_flight * 2**20, settings.bodies_in_flight_per_key * 2**20, refused=metrics.body_refused
    )
    metrics.bodies_held(lambda: bodies.held)
    lag = LoopLag(clock)
    metrics.loop_lag(lag.seconds)
    collections = GcWatch()
    registry.register(
        ProcessMetrics("controller", lambda: {(): read_figures(collections, settings.data_dir)}, disk=True)
    )
    return Serving(registry, bodies, proxies, lag, collections, tls, authority_ends)


def runner_of(app: web.Application) -> web.AppRunner:
    return web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=HTTP_CLOSE_S,
        keepalive_timeout=_KEEPALIVE_S,
        logger=ServerLog("controller"),
        auto_decompress=False,
    )


async def listen(
    settings: ControllerSettings, serving: Serving, runner: web.AppRunner
) -> tuple[str, list[socket.socket] | None]:
    """Binds the public port for a gateway; with `--no-gateway`, serves the API there.

    Returns:
        The base URL for clients of this host, and the gateway's sockets; None: the API serves the port, or a gateway
        service of this host owns it.

    Raises:
        CannotListenError: the port cannot be bound.
    """
    tls, listening = serving.tls, None
    try:
        if settings.gateway:
            listening = await bind(settings.host, settings.port, settings.gateway_processes)
            address = listening[0].getsockname()
        elif settings.socket_only:
            address = (settings.host, settings.port)
        else:
            _warn_of_strangers(settings)
            context = None if tls is None else tls.certificate.listening_context()
            await web.TCPSite(runner, settings.host, settings.port, ssl_context=context, backlog=BACKLOG).start()
            address = next(address for address in runner.addresses if isinstance(address, tuple))
    except OSError as error:
        where, why = f"{settings.host}:{settings.port}", error.strerror or error
        raise CannotListenError(f"cannot listen on {where}: {why}; choose another port with --port") from error
    host, port = address[:2]
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104
    url = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}" if tls is None else tls.url(shown, port)
    return url, listening


def _warn_of_strangers(settings: ControllerSettings) -> None:
    """Warns where other hosts may reach the port, and no secret shows that gateways are to be its only clients."""
    if settings.gateway_secret is None and not _is_loopback(settings.host):
        log.warning(
            "the API's port is not defended against strangers; keep it in a network of your own",
            host=settings.host,
            port=settings.port,
            remedy="let a gateway own the public port; for gateways of other hosts set GPUWARD_GATEWAY_SECRET",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def serve_socket(server: web.Server, folder: Path) -> tuple[Path, PlainAcceptor]:
    """Serves gateways of this host on `controller.sock`, which only this user may open.

    The socket gets a folder of its own if the folder's path is too long or another controller serves there. Returns its
    path, and the acceptor to close.
    """
    path = folder / SOCKET_NAME
    try:
        bound = _bind_socket(path)
    except OSError as error:
        path = Path(tempfile.mkdtemp(prefix="gpuward-")) / SOCKET_NAME
        log.info("the API's socket is elsewhere", path=str(path), error=str(error))
        bound = _bind_socket(path)
    # All agents may arrive at once, and a server of uvloop takes one connection in each turn of its loop.
    acceptor = PlainAcceptor(server)
    bound.listen(BACKLOG)
    acceptor.listen(bound)
    return path, acceptor


def _bind_socket(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise OSError(f"{path} is too long for a socket")
    if _is_served(path):
        raise OSError(f"{path} is served by another controller")
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        path.parent.mkdir(parents=True, exist_ok=True)
        before = os.umask(0o177)
        try:
            bound.bind(str(path))
        finally:
            os.umask(before)
    except BaseException:
        bound.close()
        raise
    return bound


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
        return True
