"""Probes the controller and the agent's own port over HTTP. It changes nothing and uses no join token."""

import asyncio
import ssl
import time
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Final

import aiohttp
import msgspec

from agent.decide.doctor.controller import ControllerProbe
from agent.link.failure import why_unreachable
from agent.state.host_state import HostState
from schemas.wire import CONNECT_PATH, PROXY_REFUSAL_HEADER, SPOKEN, Rejected, controller_message, offered_protocols

_LIMIT_S: Final = 5.0
_REJECTION_S: Final = 0.5
_OK: Final = 200
_UNAUTHORIZED: Final = 401


async def probe_controller(
    url: str | None,
    journal: HostState | None,
    *,
    readable: bool,
    token: bool,
    timeout_s: float = _LIMIT_S,
    tls: ssl.SSLContext | bool = True,
) -> ControllerProbe:
    """Probes the controller, with `timeout_s` for each request. `readable`: the agent's data folder is readable."""
    probe = ControllerProbe(url, token=token)
    if url is None:
        return probe
    connector, limit = aiohttp.TCPConnector(ssl=tls), aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(connector=connector, timeout=limit) as session:
        try:
            sent_s = time.time()
            async with session.get(f"{url}/healthz", allow_redirects=False) as answer:
                middle_s = (sent_s + time.time()) / 2
                ahead_s = _ahead_s(answer.headers.get("Date"), middle_s)
                probe = replace(probe, status=answer.status, ahead_s=ahead_s)
        except (aiohttp.ClientError, OSError, ValueError) as error:  # TimeoutError is an OSError
            return replace(probe, error=why_unreachable(url, error))
        if probe.status != _OK:
            return probe
        if not readable:
            return replace(probe, credential="unread")
        if journal is None or journal.credential is None:
            return replace(probe, credential="none")
        return await _dial_as_worker(session, probe, journal.credential)


async def _dial_as_worker(session: aiohttp.ClientSession, probe: ControllerProbe, credential: str) -> ControllerProbe:
    """Connects as the agent, and leaves before the hello, so that the agent's own connection stays."""
    try:
        async with (
            asyncio.timeout(_LIMIT_S),
            session.ws_connect(
                f"{probe.url}{CONNECT_PATH}",
                headers={"Authorization": f"Bearer {credential}"},
                protocols=SPOKEN.names(),
            ) as socket,
        ):
            common = SPOKEN.common(offered_protocols([socket.protocol or ""]))
            refusal = "" if common is None else await _rejection(socket)
            if refusal:
                return replace(probe, credential="refused", refusal=refusal)
            return replace(probe, credential="accepted", protocol=common)
    except aiohttp.WSServerHandshakeError as error:
        if error.status == _UNAUTHORIZED:
            return replace(probe, credential="refused", refusal="its credential is unknown")
        return replace(probe, refusal=f"the controller answers {error.status}")
    except (aiohttp.ClientError, OSError) as error:
        return replace(probe, refusal=str(why_unreachable(probe.url or "", error)))


async def _rejection(socket: aiohttp.ClientWebSocketResponse) -> str:
    """The controller's immediate refusal, such as of a deleted worker; empty if it waits for the hello."""
    try:
        frame = await socket.receive(timeout=_REJECTION_S)
        message = controller_message.decode(frame.data) if frame.type is aiohttp.WSMsgType.TEXT else None
    except (TimeoutError, msgspec.DecodeError):
        return ""
    return message.message if isinstance(message, Rejected) else ""


def _ahead_s(date: str | None, now_s: float) -> float | None:
    """Lead of the sender's clock in seconds. A Date has no fractions, so the middle of its second counts."""
    if date is None:
        return None
    try:
        return parsedate_to_datetime(date).timestamp() + 0.5 - now_s
    except ValueError:
        return None


async def probe_agent(port: int) -> tuple[bool, bool | None]:
    """Whether an agent answers on a port of this host, and whether it is connected (None: unknown)."""
    base = f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_LIMIT_S)) as session:
            async with session.get(f"{base}/") as answer:
                if PROXY_REFUSAL_HEADER not in answer.headers:
                    return False, None
            async with session.get(f"{base}/readyz") as ready:
                return True, ready.status == _OK
    except (aiohttp.ClientError, OSError):
        return False, None
