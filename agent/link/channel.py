"""One WebSocket to the controller. Each operation has a time limit; each failure is an `UnreachableError`."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final

import aiohttp
import msgspec

from agent.errors import UnreachableError
from agent.link.controller_heartbeat import ControllerHeartbeat
from agent.link.failure import why_answered, why_unreachable
from schemas.wire import (
    CONNECT_PATH,
    MAX_MESSAGE_BYTES,
    SPOKEN,
    ControllerMessage,
    Protocols,
    Wire,
    controller_message,
    encode,
    explain,
    offered_protocols,
)

_CONNECT_LIMIT_S: Final = 10.0
_SEND_LIMIT_S: Final = 10.0
_LATEST_RETRY_S: Final = 60.0
_LONGEST_NUMBER: Final = 10
_CLOSE_LIMIT_S: Final = 1.0
_UNAUTHORIZED: Final = (401, 403)


class UnauthorizedError(Exception):
    """The controller does not know this credential."""


class InvalidMessageError(Exception):
    """A message of the controller is invalid; the text names the field. `command_id`: the number of a command."""

    def __init__(self, data: str | bytes, error: Exception) -> None:
        super().__init__(explain(error))
        self.command_id = _command_id(data)


class _Numbered(msgspec.Struct):
    command_id: int | None = None


class Channel:
    """An open connection. `protocol` None: the controller takes none of this agent's."""

    def __init__(
        self, ws: aiohttp.ClientWebSocketResponse, heartbeat: ControllerHeartbeat, spoken: Protocols = SPOKEN
    ) -> None:
        self.protocol = spoken.common(offered_protocols([ws.protocol or ""]))
        self._spoken = spoken
        self._ws = ws
        self._heartbeat = heartbeat

    @classmethod
    async def dial(
        cls,
        session: aiohttp.ClientSession,
        controller_url: str,
        credential: str,
        heartbeat: ControllerHeartbeat,
        spoken: Protocols = SPOKEN,
        tls: ssl.SSLContext | bool = True,
    ) -> "Channel":
        """Connects, and offers the protocols in `spoken`. Raises UnauthorizedError or UnreachableError."""
        try:
            async with asyncio.timeout(_CONNECT_LIMIT_S):
                ws = await session.ws_connect(
                    controller_url + CONNECT_PATH,
                    headers={"Authorization": f"Bearer {credential}"},
                    protocols=spoken.names(),
                    max_msg_size=MAX_MESSAGE_BYTES,
                    ssl=tls,
                    autoping=False,  # pongs count as the controller's heartbeat, so they are handled here
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status in _UNAUTHORIZED:
                raise UnauthorizedError(f"the credential is refused ({error.status})") from error
            busy = UnreachableError(await why_answered(session, controller_url, error.status))
            busy.retry_after_s = _seconds("" if error.headers is None else error.headers.get("Retry-After", ""))
            raise busy from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(str(why_unreachable(controller_url, error))) from error
        return cls(ws, heartbeat, spoken)

    async def send(self, message: Wire) -> None:
        await _send(self._ws.send_str(encode(message, self.protocol or self._spoken.lowest)))

    async def ping(self) -> None:
        await _send(self._ws.ping())

    async def receive(self, limit_s: float) -> ControllerMessage | None:
        """The next message; None for a ping or pong. Raises InvalidMessageError or UnreachableError."""
        async with time_limit(limit_s, f"the controller is silent for {limit_s:g} s"):
            frame = await self._ws.receive()
        if frame.type is aiohttp.WSMsgType.PING:
            await _send(self._ws.pong(frame.data))
        elif frame.type is not aiohttp.WSMsgType.PONG:
            if frame.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                raise UnreachableError("the controller closed the connection")
            self._heartbeat.received()
            try:
                return controller_message.decode(frame.data)
            except (msgspec.DecodeError, RecursionError) as error:
                raise InvalidMessageError(frame.data, error) from error
        self._heartbeat.received()
        return None

    async def close(self) -> None:
        """May be repeated."""
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, ConnectionError):
            async with asyncio.timeout(_CLOSE_LIMIT_S):
                await self._ws.close()


@contextlib.asynccontextmanager
async def time_limit(seconds: float, why: str) -> AsyncIterator[None]:
    """Raises UnreachableError with `why` as the message at the limit."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise UnreachableError(why) from error


def _seconds(text: str) -> float:
    """Value of a numeric `Retry-After`; 0 for others."""
    return min(float(text), _LATEST_RETRY_S) if text.isdecimal() and len(text) < _LONGEST_NUMBER else 0.0


async def _send(sending: Coroutine[Any, Any, None]) -> None:
    async with time_limit(_SEND_LIMIT_S, "the controller does not read"):
        try:
            await sending
        except (aiohttp.ClientError, ConnectionError, RuntimeError) as error:  # RuntimeError: it is closing
            raise UnreachableError(repr(error)) from error


def _command_id(data: str | bytes) -> int | None:
    try:
        return msgspec.json.decode(data, type=_Numbered).command_id
    except (msgspec.DecodeError, RecursionError):
        return None
