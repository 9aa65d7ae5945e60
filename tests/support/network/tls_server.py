"""A server that speaks TLS with a certificate of a test's own authority, and requests to it."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import uvloop

from http1.protocol.connection_admission import ConnectionAdmission
from http1.protocol.connection_rules import Limits
from http1.protocol.handler import DROPPED, Handler
from http1.protocol.heads import RequestHead
from http1.protocol.server import Server
from http1.protocol.server_connection import ServerConnection, Service
from http1.tls.certificate import ServedCertificate
from http1.tls.issue import Issued, issue_server, make_authority

LIMITS = Limits(64, 32, 16)
NOW = datetime.now(UTC)
AUTHORITY = make_authority(NOW)
LOOPS = (asyncio.new_event_loop, uvloop.new_event_loop)


def write(folder: Path, issued: Issued) -> tuple[Path, Path]:
    certificate, key = folder / "server.crt", folder / "server.key"
    certificate.write_bytes(issued.certificate)
    key.write_bytes(issued.key)
    return certificate, key


def issued(days: int = 90) -> Issued:
    return issue_server(AUTHORITY, ["localhost", "127.0.0.1"], NOW, days=days)


class Served:
    """A server that answers whether its connection speaks TLS."""

    def __init__(self, certificate: ServedCertificate, limits: Limits = LIMITS, *, plain: bool = False) -> None:
        self.closed: list[str] = []
        self.certificate = certificate
        self.admission = ConnectionAdmission(limits, name="test", closed=self.closed.append)
        service = Service(self._answer, lambda error: str(error).encode(), self.admission)
        self.server = Server(service, lambda: certificate.context, plain=plain)

    def _answer(self, head: RequestHead, connection: ServerConnection) -> Handler:
        if head.path == b"/large":
            connection.answer(200, (), b"x" * 3_000_000)
        elif head.method == b"POST":
            connection.answer(413, (), b"too large")
        else:
            connection.answer(200, (), b"secure" if connection.secure else b"plain")
        return DROPPED

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator["Served"]:
        await self.server.listen("127.0.0.1", 0)
        try:
            yield self
        finally:
            await self.server.close(0.0)


async def get(port: int, context: ssl.SSLContext, path: str = "/") -> tuple[int, bytes]:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session,
        session.get(f"https://127.0.0.1:{port}{path}", ssl=context) as answer,
    ):
        return answer.status, await answer.read()
