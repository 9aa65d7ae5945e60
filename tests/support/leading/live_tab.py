"""A client of the live socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import orjson

from support.leading.served_api import ServedApi

LIMIT_S: Final = 20.0


class Tab:
    """A client."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def open(self, id_: int, topic: str, **params: Any) -> None:
        await self.socket.send_json({"op": "open", "id": id_, "topic": topic, "params": params})

    async def close(self, id_: int) -> None:
        await self.socket.send_json({"op": "close", "id": id_})

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(LIMIT_S):
            message = await self.socket.receive()
            assert message.type is aiohttp.WSMsgType.TEXT, message
            return orjson.loads(message.data)

    async def of(self, id_: int, type_: str) -> dict[str, Any]:
        """The next message of this topic and type."""
        while True:
            message = await self.next()
            if (message["id"], message["type"]) == (id_, type_):
                return message

    async def closed(self) -> int | None:
        """The code with which the server closes."""
        async with asyncio.timeout(LIMIT_S):
            async for _ in self.socket:
                pass
        return self.socket.close_code


@asynccontextmanager
async def tab(api: ServedApi, role: str = "viewer", *, key: str | None = None) -> AsyncIterator[Tab]:
    header = api.header(role) if key is None else {"Authorization": f"Bearer {key}"}
    async with api.session.ws_connect(f"{api.url}/api/v1/live", headers=header, compress=15) as socket:
        yield Tab(socket)
