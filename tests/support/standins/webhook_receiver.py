"""A receiver of webhooks on loopback. The test sets its answers; it checks signatures itself."""

import base64
import hashlib
import hmac
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from support.loopback import listening


@dataclass(frozen=True)
class Received:
    """One request."""

    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def content(self) -> Any:
        return orjson.loads(self.body)

    def signed_with(self, key: bytes) -> bool:
        """Whether one of its signatures is valid: Standard Webhooks, symmetric."""
        signed = f"{self.id}.{self.headers['webhook-timestamp']}.".encode() + self.body
        right = "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
        return right in self.headers["webhook-signature"].split(" ")


@dataclass
class Receiver:
    """The requests received. `answers` are the statuses of the next answers; after them 204 follows."""

    url: str = ""
    answers: list[int] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)

    async def _take(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.received.append(Received(headers, await request.read()))
        return web.Response(status=self.answers.pop(0) if self.answers else 204)


@asynccontextmanager
async def webhook_receiver(answers: Sequence[int] = ()) -> AsyncIterator[Receiver]:
    """Listens for as long as the context lasts."""
    receiver = Receiver(answers=list(answers))
    app = web.Application()
    app.router.add_post("/hook", receiver._take)
    async with listening(app) as address:
        receiver.url = f"http://{address}/hook"
        yield receiver
