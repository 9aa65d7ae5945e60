"""The Unix socket on which the controller serves its API to gateways of the same host."""

import contextlib
import os
import socket
import tempfile
from pathlib import Path
from typing import Final

import structlog
from aiohttp import web

from http1.protocol.listening import BACKLOG, PlainAcceptor

log = structlog.get_logger(__name__)

FILE_NAME: Final = "controller.sock"
_LONGEST_PATH: Final = 100  # bytes; the kernel takes 107


async def serve_socket(server: web.Server, folder: Path) -> tuple[Path, PlainAcceptor]:
    """Serves on `controller.sock` in the folder, for this user alone; returns its path, and what to close.

    Where the folder cannot have it, since its path is too long or another controller serves there, the socket gets a
    folder of its own.
    """
    path = folder / FILE_NAME
    try:
        bound = _bind(path)
    except OSError as error:
        path = Path(tempfile.mkdtemp(prefix="gpuward-")) / FILE_NAME
        log.info("the API's socket is elsewhere", path=str(path), error=str(error))
        bound = _bind(path)
    # All agents may arrive at once, and a server of uvloop takes one connection in each turn of its loop.
    acceptor = PlainAcceptor(server)
    bound.listen(BACKLOG)
    acceptor.listen(bound)
    return path, acceptor


def _bind(path: Path) -> socket.socket:
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
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        try:
            asking.connect(str(path))
        except OSError:
            return False
        return True
