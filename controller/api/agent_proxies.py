"""The client session to the agents' proxies, for logs and caches."""

import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import aiohttp
from aiohttp import web

from controller.api.context import CONTEXT
from controller.api.errors import ApiError, unavailable
from controller.store.access.proxy_secrets import PURPOSE
from controller.store.access.secret_keys import SecretKeys
from controller.store.views.instances import LogSource
from http1.protocol.connecting import notice_gone_hosts

_CONNECT_S: Final = 5.0
_KEPT_S: Final = 15.0  # idle connections; agents end them later
Query = Mapping[str, str] | Sequence[tuple[str, str | float]]


@dataclass(frozen=True, slots=True)
class AgentProxies:
    """A client session for proxies, and the keys that decrypt their secrets."""

    session: aiohttp.ClientSession
    keys: SecretKeys


class SecretUnknownError(aiohttp.ClientError):
    """No key of this controller decrypts the secret of the proxy. It is replaced when its agent connects again."""


AGENT_PROXIES: Final = web.AppKey("AGENT_PROXIES", AgentProxies)


async def agent_proxies_context(app: web.Application) -> AsyncIterator[None]:
    async with aiohttp.ClientSession(
        # No limit, because a request that waits for a free connection would hang in a queue that no metric shows.
        connector=aiohttp.TCPConnector(
            limit=0, limit_per_host=0, keepalive_timeout=_KEPT_S, socket_factory=agent_socket
        ),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    ) as session:
        app[AGENT_PROXIES] = AgentProxies(session, app[CONTEXT].secret_keys.branch(PURPOSE))
        yield


@asynccontextmanager
async def ask(
    proxies: AgentProxies,
    source: LogSource,
    path: str,
    params: Query,
    *,
    timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - of the client, in its own parts
    method: str = "GET",
) -> AsyncIterator[aiohttp.ClientResponse]:
    """Sends a request to a proxy. A proxy with a certificate must show exactly the one that its agent reported.

    Raises:
        aiohttp.ClientError: it does not answer, or its secret is unknown.
    """
    certificate = source.certificate
    await proxies.keys.learn((source.secret.key_id,))
    secret = source.secret.opened(proxies.keys)
    if secret is None:
        raise SecretUnknownError(source.worker)
    async with proxies.session.request(
        method,
        f"{'https' if certificate else 'http'}://{source.address}{path}",
        params=params,
        headers={"Authorization": f"Bearer {secret}"},
        timeout=timeout,
        ssl=aiohttp.Fingerprint(bytes.fromhex(certificate)) if certificate else True,
        allow_redirects=False,  # an agent must not choose other addresses that the controller reads
    ) as answer:
        yield answer


def unreachable(source: LogSource) -> ApiError:
    """503: the agent does not answer."""
    return unavailable(
        "worker_unreachable",
        f"worker {source.worker!r} ({source.phase}) is unreachable at {source.address or 'an unknown address'}; check "
        "that its agent runs and that its --advertise address is reachable from the controller",
    )


def agent_socket(address: tuple[int, int, int, str, tuple[object, ...]]) -> socket.socket:
    """A socket that notices within a minute that the other host is gone."""
    family, kind, protocol, *_ = address
    opened = socket.socket(family, kind, protocol)
    notice_gone_hosts(opened)
    opened.setblocking(False)
    return opened
