"""Connections to agents."""

import socket

import aiohttp
import pytest
from aiohttp import web

from controller.api.agent_proxies import AgentProxies, agent_socket, ask
from controller.store.access.proxy_secrets import StoredProxySecret
from controller.store.access.secret_keys import NO_KEYS
from controller.store.views.instances import LogSource
from http1.protocol.connecting import notice_gone_hosts
from support.loopback import listening


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


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_an_agent_sends_the_controller_nowhere_else(method: str, status: int) -> None:
    """What answers there, such as a cloud's metadata, is closed to the agent, but not to the controller."""
    reached: list[str] = []

    async def inner(request: web.Request) -> web.Response:
        reached.append(request.path)
        return web.Response(text="closed to the agent")

    async def proxy(_: web.Request) -> web.Response:
        return web.Response(status=status, headers={"Location": f"http://{elsewhere}/latest/meta-data"})

    closed, agent = web.Application(), web.Application()
    closed.router.add_route("*", "/latest/meta-data", inner)
    agent.router.add_route("*", "/logs/i", proxy)
    async with listening(closed) as elsewhere, listening(agent) as address, aiohttp.ClientSession() as session:
        source = LogSource("w", "ready", address, StoredProxySecret("w", "s"))
        proxies, limit = AgentProxies(session, NO_KEYS), aiohttp.ClientTimeout(total=10)
        async with ask(proxies, source, "/logs/i", {"tail": "5"}, timeout=limit, method=method) as answer:
            assert answer.status == status
    assert reached == []
