"""One small request of the gateway's own to the controller."""

from typing import Final

from gateway.control_plane.reverse_proxy import Controller
from http1 import fetch as http1_fetch
from http1.fetch import FetchError
from http1.protocol.client import ClientConnection
from http1.protocol.heads import Fields, ResponseHead

_MOST_BYTES: Final = 64 * 2**20
__all__ = ["FetchError", "fetch"]


async def fetch(controller: Controller, path: bytes, fields: Fields, limit_s: float) -> tuple[ResponseHead, bytes]:
    """Head and body of the controller's answer to a GET. A controller that gives none is asked last from now on.

    Raises:
        FetchError: there is none within the limit, or it is too large.
    """
    requested = controller.address

    async def connect() -> ClientConnection:
        nonlocal requested
        connection = await controller.connect()
        requested = controller.address
        return connection

    sent = [(b"host", b"controller"), *fields, *controller.credential()]
    try:
        most = _MOST_BYTES + 1
        head, body = await http1_fetch.fetch(connect, b"GET", path, sent, limit_s=limit_s, most_bytes=most)
    except FetchError:
        controller.silent(requested)
        raise
    if len(body) > _MOST_BYTES:
        raise FetchError("the answer is too large")
    return head, body
