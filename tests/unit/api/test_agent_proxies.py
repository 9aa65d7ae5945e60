"""Connections to agents."""

import socket

from controller.api.agent_proxies import agent_socket
from http1.liveness import notice_gone_hosts


def test_a_connection_to_an_agent_notices_a_host_that_is_gone() -> None:
    with agent_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 30
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 60_000


def test_so_does_one_of_the_gateway() -> None:
    with socket.socket() as made:
        notice_gone_hosts(made)
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 60_000
