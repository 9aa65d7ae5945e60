"""Clients over TLS: which certificates they accept."""

import asyncio
import ssl
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest

from http1.protocol.client import ClientConnection, Pool
from http1.protocol.connecting import ConnectError
from http1.protocol.heads import ResponseHead, request_bytes
from http1.tls.certificate import ServedCertificate
from http1.tls.issue import issue_server, make_self_signed
from http1.tls.pinned import Pinned, Verified
from support.network.tls_server import AUTHORITY, LOOPS, NOW, Served, get, write


class Collected:
    """Collects one answer."""

    def __init__(self) -> None:
        self.body = b""
        self.over: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def response_head(self, head: ResponseHead) -> None:
        self.body += b"%d " % head.status

    def response_body(self, data: bytes, chunks: bytes = b"") -> None:  # noqa: ARG002 - not needed here
        self.body += data

    def response_end(self) -> None:
        self.over.set_result(self.body)

    def response_failed(self, why: str) -> None:
        self.over.set_exception(ConnectionError(why))

    def request_writable(self, *, ready: bool) -> None:
        pass


async def ask(connection: ClientConnection) -> bytes:
    collected = Collected()
    connection.ask(request_bytes(b"GET", b"/", [(b"host", b"x")]), (), collected)
    async with asyncio.timeout(5):
        return await collected.over


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_accepts_exactly_the_certificate_that_it_was_told(loop: object, tmp_path: Path) -> None:
    async def both() -> None:
        own = ServedCertificate(*write(tmp_path, make_self_signed("gpu-1", NOW)))
        async with Served(own).run() as served:
            pool = Pool()
            connection = await pool.connect(Pinned("127.0.0.1", served.server.port, own.fingerprint))
            assert await ask(connection) == b"200 secure"
            with pytest.raises(ConnectError, match="another certificate") as refused:
                await pool.connect(Pinned("127.0.0.1", served.server.port, bytes(32)))
            assert refused.value.errno is None
            pool.close()

    with asyncio.Runner(loop_factory=loop) as runner:  # type: ignore[arg-type]
        runner.run(both())


async def test_a_client_verifies_an_authority_and_the_name(
    certificate: ServedCertificate, authority: ssl.SSLContext
) -> None:
    async with Served(certificate).run() as served:
        pool = Pool()
        assert await ask(await pool.connect(Verified("localhost", served.server.port, authority))) == b"200 secure"
        with pytest.raises(ConnectError):
            await pool.connect(Verified("127.0.0.1", served.server.port, ssl.create_default_context()))
        pool.close()
        await asyncio.sleep(0)


async def test_an_expired_certificate_is_not_accepted(tmp_path: Path, authority: ssl.SSLContext) -> None:
    old = issue_server(AUTHORITY, ["127.0.0.1"], NOW - timedelta(days=2), days=1)
    async with Served(ServedCertificate(*write(tmp_path, old))).run() as served:
        with pytest.raises(aiohttp.ClientConnectorCertificateError, match="expired"):
            await get(served.server.port, authority)
