"""TLS on real sockets: what a server shows, and which clients it bounds."""

import asyncio
import contextlib
import ssl
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from http1.protocol.connection_rules import Connection, Limits, Standing
from http1.tls.bounded import MOST_EMPTY_BYTES, MOST_HANDSHAKE_BYTES
from http1.tls.certificate import CertificateError, ServedCertificate
from http1.tls.pinned import trusting
from support.network.key_updates import ask_for_keys
from support.network.tls_server import LOOPS, Served, get, issued, write


async def raw(port: int, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    try:
        async with asyncio.timeout(5):
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize("loop", LOOPS)
def test_requests_are_answered_over_tls(
    loop: object, certificate: ServedCertificate, authority: ssl.SSLContext
) -> None:
    async def ask() -> None:
        async with Served(certificate).run() as served:
            assert await get(served.server.port, authority) == (200, b"secure")
            status, body = await get(served.server.port, authority, "/large")
            assert (status, len(body)) == (200, 3_000_000)
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await get(served.server.port, ssl.create_default_context())
        assert len(served.admission) == 0

    with asyncio.Runner(loop_factory=loop) as runner:  # type: ignore[arg-type]
        runner.run(ask())


async def test_an_answer_before_the_whole_body_arrives(
    certificate: ServedCertificate, authority: ssl.SSLContext
) -> None:
    async with Served(certificate).run() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.server.port, ssl=authority)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nbegin")
        async with asyncio.timeout(5):
            assert b" 413 " in await reader.readline()
        writer.transport.abort()


async def test_plain_http_to_the_tls_port_is_told_so(certificate: ServedCertificate) -> None:
    async with Served(certificate).run() as served:
        answer = await raw(served.server.port, b"GET /v1/models HTTP/1.1\r\nAuthorization: Bearer key\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"use https://" in answer
        assert await raw(served.server.port, b"\x00\x01\x02") == b""
        assert served.closed == ["handshake"] * 2


async def test_a_port_may_take_both(certificate: ServedCertificate, authority: ssl.SSLContext) -> None:
    async with Served(certificate, plain=True).run() as served:
        assert (await raw(served.server.port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")).endswith(b"plain")
        assert await get(served.server.port, authority) == (200, b"secure")


@pytest.mark.parametrize("begun", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"])
async def test_a_slow_handshake_ends_within_the_time_for_a_head(begun: bytes, certificate: ServedCertificate) -> None:
    async with Served(certificate, Limits(64, 32, 16, head_s=0.2)).run() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.server.port)
        writer.write(begun)
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        assert served.closed == ["head"]
        assert len(served.admission) == 0
        writer.close()


async def test_handshakes_count_against_the_bounds(certificate: ServedCertificate, authority: ssl.SSLContext) -> None:
    limits = Limits(8, 4, 2, unread_s=0.0)
    async with Served(certificate, limits).run() as served:
        held = [await asyncio.open_connection("127.0.0.1", served.server.port) for _ in range(12)]
        assert await get(served.server.port, authority) == (200, b"secure")
        assert len(served.admission) <= 8
        assert served.closed.count("bound") >= 8
        for _, writer in held:
            writer.close()


async def test_what_is_refused_at_the_bound_leaves_nothing_behind(certificate: ServedCertificate) -> None:
    async with Served(certificate, Limits(2, 2, 2)).run() as served:
        for _ in range(2):  # agents' connections, of which none gives way
            busy = Connection("10.0.0.1", 0.0)
            assert served.admission.admit(Busy(busy))
            assert served.admission.connections.serve(busy, 0.0, body=False, standing=Standing.AGENT) == (None, None)
        for _ in range(20):
            assert await raw(served.server.port, b"") == b""
        assert len(served.admission) == 2
        assert len(served.admission._of) == 2
        for busy in list(served.admission._of):
            served.admission.lost(busy)


class Busy:
    """A connection whose request is being answered."""

    def __init__(self, record: Connection) -> None:
        self.record = record

    def shut(self, *, late_head: bool) -> None:
        raise AssertionError(late_head)


async def test_a_garbled_handshake_is_counted_and_ends(certificate: ServedCertificate) -> None:
    async with Served(certificate).run() as served:
        answer = await raw(served.server.port, b"\x16\x03\x01\x00\x04none")
        assert b"HTTP" not in answer
        assert served.closed == ["handshake"]
        assert len(served.admission) == 0


async def test_old_versions_of_tls_are_refused(certificate: ServedCertificate, authority: ssl.SSLContext) -> None:
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        authority.minimum_version = authority.maximum_version = ssl.TLSVersion.TLSv1_1
    async with Served(certificate).run() as served:
        with pytest.raises(aiohttp.ClientConnectorError):
            await get(served.server.port, authority)


# Certificates that change


@pytest.mark.parametrize("cipher", ["ECDHE-ECDSA-AES128-SHA256", "ECDHE-ECDSA-AES256-SHA384", "ECDHE-RSA-AES128-SHA"])
async def test_suites_with_cbc_are_refused(
    cipher: str, certificate: ServedCertificate, authority: ssl.SSLContext
) -> None:
    authority.maximum_version = ssl.TLSVersion.TLSv1_2
    authority.set_ciphers(cipher)
    async with Served(certificate).run() as served:
        with pytest.raises(aiohttp.ClientConnectorError):
            await get(served.server.port, authority)


async def test_a_few_requests_for_new_keys_are_obeyed_and_many_end_the_connection(
    certificate: ServedCertificate,
) -> None:
    async with Served(certificate).run() as served:
        asked = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
        sent, answer = await asyncio.to_thread(ask_for_keys, served.server.port, 20, asked)
        assert (sent, answer.startswith(b"HTTP/1.1 200 ")) == (20, True)
        for times in (MOST_EMPTY_BYTES // 27 + 100, 100_000):
            sent, answer = await asyncio.to_thread(ask_for_keys, served.server.port, times, asked)
            assert answer == b""
        assert sent < 100_000, "the flood was cut off"


async def test_a_handshake_without_end_is_refused(certificate: ServedCertificate) -> None:
    async with Served(certificate).run() as served:
        begun = b"\x16\x03\x01\x40\x00\x01\x01\xff\xff\x03\x03" + bytes(0x4000 - 6)
        assert await raw(served.server.port, begun + (b"\x16\x03\x01\x40\x00" + bytes(0x4000)) * 5) == b""
        assert served.closed == ["handshake"]


async def test_a_client_sends_much_with_the_end_of_its_handshake(
    certificate: ServedCertificate, authority: ssl.SSLContext
) -> None:
    async with Served(certificate).run() as served, aiohttp.ClientSession() as session:
        url = f"https://127.0.0.1:{served.server.port}/"
        async with session.post(url, data=bytes(3 * MOST_HANDSHAKE_BYTES), ssl=authority) as answer:
            assert answer.status == 413


async def test_a_new_certificate_is_shown_without_a_restart(tmp_path: Path, authority: ssl.SSLContext) -> None:
    served = Served(ServedCertificate(*write(tmp_path, issued())))
    before = served.certificate.fingerprint
    async with served.run():
        write(tmp_path, issued(45))
        assert served.certificate.look()
        assert served.certificate.fingerprint != before
        context = trusting(tmp_path / "ca.crt")
        _, writer = await asyncio.open_connection("127.0.0.1", served.server.port, ssl=context)
        shown = writer.get_extra_info("ssl_object").getpeercert()
        assert ssl.cert_time_to_seconds(shown["notAfter"]) == served.certificate.expires_s
        writer.close()
        assert await get(served.server.port, authority) == (200, b"secure")


@pytest.mark.parametrize("what", ["missing", "no PEM", "another's key", "encrypted"])
async def test_a_broken_file_keeps_the_earlier_certificate(
    what: str, tmp_path: Path, authority: ssl.SSLContext, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate, key = write(tmp_path, issued())
    served = Served(ServedCertificate(certificate, key))
    match what:
        case "missing":
            certificate.unlink()
        case "no PEM":
            certificate.write_text("nothing")
        case "another's key":
            key.write_bytes(issued().key)
        case _:
            key.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n")
    capsys.readouterr()
    for _ in range(3):
        assert not served.certificate.look()
    assert capsys.readouterr().out.count("certificate not replaced") == 1
    assert str(tmp_path) in served.certificate.problem
    assert "not used" in served.certificate.state()
    async with served.run():
        assert await get(served.server.port, authority) == (200, b"secure")
    write(tmp_path, issued())
    assert served.certificate.look()
    assert served.certificate.state() == ""


def test_a_certificate_that_ends_soon_is_warned_of_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certificate = ServedCertificate(*write(tmp_path, issued(3)))
    certificate.look()
    assert capsys.readouterr().out.count("certificate ends soon") == 1
    assert "ends in" in certificate.state()


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match="cannot be read"):
        ServedCertificate(tmp_path / "none.crt", tmp_path / "none.key")


# aiohttp's server


async def test_aiohttps_server_shows_a_new_certificate_without_a_restart(
    tmp_path: Path, authority: ssl.SSLContext
) -> None:
    certificate = ServedCertificate(*write(tmp_path, issued()))

    async def scheme(request: web.Request) -> web.Response:
        return web.Response(text=request.scheme)

    app = web.Application()
    app.router.add_get("/", scheme)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=certificate.listening_context()).start()
        port = runner.addresses[0][1]
        for days in (45, 60):
            write(tmp_path, issued(days))
            assert certificate.look()
            for name in ("localhost", ""):  # with a name in its first message, and without
                authority.check_hostname = False
                _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=authority, server_hostname=name)
                shown = writer.get_extra_info("ssl_object").getpeercert()
                assert ssl.cert_time_to_seconds(shown["notAfter"]) == certificate.expires_s
                writer.close()
            assert await get(port, authority) == (200, b"https")
    finally:
        await runner.cleanup()
