"""One WebSocket to the controller: messages in and out, each within its time. Any failure is an `UnreachableError`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final

import aiohttp
from pydantic import ValidationError

from agent.contact import Contact
from agent.errors import UnreachableError
from schemas.base import Wire
from schemas.wire import CONNECT_PATH, MAX_MESSAGE_BYTES, controller_message

_CONNECT_LIMIT_S: Final = 10.0
_SEND_LIMIT_S: Final = 10.0
_CLOSE_LIMIT_S: Final = 1.0
_UNAUTHORIZED: Final = (401, 403)


class UnauthorizedError(Exception):
    """The controller does not know this credential."""


class Garbled(Exception):  # noqa: N818 - no failure of the channel: one message that cannot be read
    """A message that is not understood; `data` is what came, the text names the field."""

    def __init__(self, data: str | bytes, error: ValidationError) -> None:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        super().__init__(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
        self.data = data


class Channel:
    """An open connection."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse, contact: Contact) -> None:
        self._ws = ws
        self._contact = contact

    @classmethod
    async def dial(
        cls, session: aiohttp.ClientSession, controller_url: str, credential: str, contact: Contact
    ) -> "Channel":
        """Connects.

        Raises:
            UnauthorizedError: the credential is refused.
            UnreachableError: there is no connection to be had now.
        """
        try:
            async with asyncio.timeout(_CONNECT_LIMIT_S):
                ws = await session.ws_connect(
                    controller_url + CONNECT_PATH,
                    headers={"Authorization": f"Bearer {credential}"},
                    max_msg_size=MAX_MESSAGE_BYTES,
                    autoping=False,  # pongs are the controller's words too: they are counted here
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status in _UNAUTHORIZED:
                raise UnauthorizedError(f"the credential is refused ({error.status})") from error
            raise UnreachableError(f"the controller answers {error.status}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(repr(error)) from error
        return cls(ws, contact)

    async def send(self, message: Wire) -> None:
        """Sends one message."""
        await _guarded(self._ws.send_str(message.model_dump_json()))

    async def ping(self) -> None:
        """Makes the controller say something."""
        await _guarded(self._ws.ping())

    async def receive(self, limit_s: float) -> Any:
        """What the controller says next; None where it only gave a sign of life.

        Raises:
            Garbled: it is not understood.
            UnreachableError: nothing came in time, or the connection is over.
        """
        async with limit(limit_s, f"the controller is silent for {limit_s:g} s"):
            frame = await self._ws.receive()
        if frame.type is aiohttp.WSMsgType.PING:
            await _guarded(self._ws.pong(frame.data))
        elif frame.type is not aiohttp.WSMsgType.PONG:
            if frame.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                raise UnreachableError("the controller closed the connection")
            self._contact.heard()
            try:
                return controller_message.validate_json(frame.data)
            except ValidationError as error:
                raise Garbled(frame.data, error) from error
        self._contact.heard()
        return None

    async def close(self) -> None:
        """Ends the connection; doing it twice is fine."""
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, ConnectionError):
            async with asyncio.timeout(_CLOSE_LIMIT_S):
                await self._ws.close()


@contextlib.asynccontextmanager
async def limit(seconds: float, why: str) -> AsyncIterator[None]:
    """A time limit whose end means that the controller cannot be reached."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise UnreachableError(why) from error


async def _guarded(sending: Coroutine[Any, Any, None]) -> None:
    async with limit(_SEND_LIMIT_S, "the controller takes nothing"):
        try:
            await sending
        except (aiohttp.ClientError, ConnectionError, RuntimeError) as error:  # RuntimeError: it is closing
            raise UnreachableError(repr(error)) from error
