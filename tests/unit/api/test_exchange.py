"""What errors say about a request: only an error of connecting proves that nothing was sent."""

import errno
import socket
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from controller.api.agent_proxies import agent_socket
from controller.api.gateway.exchange import happening_of
from controller.api.gateway.outcomes import Happening

H = Happening
KEY: Any = SimpleNamespace(host="h", port=1, ssl=True)


def not_connected(number: int) -> aiohttp.ClientConnectorError:
    return aiohttp.ClientConnectorError(KEY, OSError(number, "on purpose"))


@pytest.mark.parametrize(
    ("error", "before", "midway"),
    [
        (not_connected(errno.ECONNREFUSED), H.NOT_CONNECTED, H.NOT_CONNECTED),
        (not_connected(errno.EHOSTUNREACH), H.NOT_CONNECTED, H.NOT_CONNECTED),
        (not_connected(errno.EMFILE), H.NO_FILES, H.NO_FILES),
        (not_connected(errno.ENFILE), H.NO_FILES, H.NO_FILES),
        (aiohttp.ConnectionTimeoutError(), H.NOT_CONNECTED, H.NOT_CONNECTED),
        (aiohttp.ServerDisconnectedError(), H.BROKE_OFF, H.BROKE_OFF_MIDWAY),
        (aiohttp.ClientOSError(errno.ECONNRESET, "reset"), H.BROKE_OFF, H.BROKE_OFF_MIDWAY),
        (aiohttp.ClientPayloadError(), H.BROKE_OFF, H.BROKE_OFF_MIDWAY),
        (OSError(errno.ETIMEDOUT, "the host is gone"), H.BROKE_OFF, H.BROKE_OFF_MIDWAY),
        (TimeoutError(), H.SILENT, H.SILENT_MIDWAY),
    ],
)
def test_what_an_error_says(error: Exception, before: Happening, midway: Happening) -> None:
    assert happening_of(error, begun=False) is before
    assert happening_of(error, begun=True) is midway


def test_a_connection_to_an_agent_notices_a_host_that_is_gone() -> None:
    with agent_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 30
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 60_000
